# apiece[explainable]: what the benchmark of the estimators compares with is there.
python -c "from diffprivlib.models import LogisticRegression; from interpret.privacy import DPExplainableBoostingClassifier"
cd "$CLONE" && python -m research.benchmarks.explainable --help > /dev/null
