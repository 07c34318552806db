# apiece[all]: what each of its parts runs.
for extra in tables reports train ledger queries sensitivity sklearn pdf; do
    mkdir "$extra"
    (cd "$extra" && bash -eu "$CLONE/.ci/smokes/$extra.sh")
done
