"""Upper bounds by Rényi divergences, which add up under composition."""
