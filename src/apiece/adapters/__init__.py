"""apiece beside other tools: Opacus, scikit-learn, Lightning, Hugging Face, Ray."""
