# apiece[oracles]: OpenDP answers.
python -c "import opendp.prelude as dp; dp.enable_features('contrib'); print(dp.space_of(int))"
