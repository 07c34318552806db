# apiece[sensitivity]: a query differentiated.
python -m apiece sensitivity "a**2 + exp(2*b - a)" --range a=1:2 --range b=.5:3 --figure surface.png
