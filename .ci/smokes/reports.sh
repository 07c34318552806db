# apiece[reports]: the page of a plan and of a choice, and figures.
shape="--groups a:1:.5,b:3:.5 --records 500 --delta 1e-5 --batch-size 50 --steps 40"
python -m apiece plan $shape --strategy sample --out plan.json
python -m apiece report plan.json --out plan.html
python -m apiece explain $shape --excess .02 --strategy hybrid --page choose.html
python -m apiece explain --epsilon 1 --delta 1e-5 --figure promise.png
python -m apiece account --noise-multiplier 1 --steps 9 --delta 1e-5 --figure curve.svg
python -m apiece risk --records 500 --batch-size 50 --steps 40 --delta 1e-5 --epsilon 2 --others 4 \
    --shares .5 --figure risk.png
python -c "
import apiece
plan = apiece.Plan.from_json(open('plan.json').read())
apiece.report(plan).save('again.html')
"
