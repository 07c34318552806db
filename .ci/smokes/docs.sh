# apiece[docs]: the pages.
cd "$CLONE" && NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --strict --site-dir "$OLDPWD/site"
