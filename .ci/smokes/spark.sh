# apiece[spark]: a question asked on Spark of this machine.
command -v java > /dev/null || { echo "Java is not installed"; exit 77; }
printf 'id,consent\na,1\nb,3\nc,3\n' > people.csv
python -m apiece ledger init people.db --data people.csv --person id --epsilon consent --delta 1e-6
python -c "import pandas; pandas.read_csv('people.csv').to_parquet('people.parquet')"
python -m apiece query people.parquet "count(persons)" --person id --epsilon .3 --delta 0 \
    --ledger people.db --engine spark
