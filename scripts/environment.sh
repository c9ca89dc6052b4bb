#!/bin/sh
# environment.sh EXTRAS [REQUIREMENT...]: makes .venv where it is missing or broken, and installs the project into it.
# The Makefile calls it. VENV names another folder than .venv; PYTHON names the interpreter, without it the newest
# Python >= 3.11 found is taken.
set -eu
extras=$1
shift
venv=${VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }
stop() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
usable() { [ -x "$venv/bin/python" ] && fits "$venv/bin/python" && { has uv || has_pip; }; }

interpreter() {
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
        if fits "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        stop "PYTHON must be Python 3.11 or newer; got $PYTHON. Name another, or leave PYTHON out."
    fi
    # uv finds or downloads one by itself.
    if has uv; then echo '>=3.11'; return; fi
    stop "No Python 3.11 or newer found. Install one (Debian, Ubuntu: apt install python3 python3-venv) or uv, or name yours: make PYTHON=/path/to/python3"
}

# Debian's Python has no ensurepip without its venv package, so pip has to come from elsewhere.
create() {
    python=$1
    if has uv; then uv venv --quiet --python "$python" "$venv"; return; fi
    if "$python" -m venv --clear "$venv" >/dev/null 2>&1 && has_pip; then return; fi
    if "$python" -m venv --clear --without-pip "$venv" >/dev/null 2>&1; then
        if "$python" -m pip --python "$venv/bin/python" install --quiet pip >/dev/null 2>&1 && has_pip; then return; fi
    fi
    rm -rf "$venv"
    if "$python" -m virtualenv --quiet "$venv" >/dev/null 2>&1 && has_pip; then return; fi
    if has virtualenv && virtualenv --quiet --python "$python" "$venv" >/dev/null 2>&1 && has_pip; then return; fi
    rm -rf "$venv"
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    stop "$python cannot make virtual environments. Debian, Ubuntu: apt install $package; elsewhere install uv or virtualenv. Then run make again."
}

if ! usable; then
    if [ -e "$venv" ]; then
        say "Replacing $venv: it holds no working Python 3.11 or newer with an installer."
        rm -rf "$venv"
    fi
    python=$(interpreter)
    say "Making $venv with $python"
    create "$python"
fi
say "Installing rope-jax[$extras] into $venv"
if has uv; then
    uv pip install --python "$venv/bin/python" --editable ".[$extras]" "$@"
else
    "$venv/bin/python" -m pip install --disable-pip-version-check --editable ".[$extras]" "$@"
fi
