"""Reference pages made from the code: the job file with its JSON Schema, the REST API, the command line; and two lists.

`docs/make_reference.py` writes them, and tests compare them with the code.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MADE = "Made from the code by `python docs/make_reference.py`."
JSON = dict[str, Any]

EXAMPLE = """name: resnet50
nodes: 4
workload:
  command: torchrun --nproc-per-node 8 train.py --epochs 90
  working_dir: /srv/train
  environment: {NCCL_DEBUG: WARN}
budget: {max_trials: 24, max_seconds: 3600}
allow: exact
"""


def describe_job_schema() -> str:
    """Return `docs/job.schema.json`: a job file as `advisor submit` reads it."""
    return json.dumps(_make_job_schema(), indent=2, ensure_ascii=False) + "\n"


def _make_job_schema() -> JSON:
    from advisor.protocol.asked.jobs import JobSpec

    schema = JobSpec.model_json_schema()
    workload = schema["$defs"]["Workload"]
    words = workload["properties"]["command"]
    # What the command line reads in a file besides what the API takes.
    workload["properties"]["command"] = {
        "anyOf": [{key: words[key] for key in ("type", "items", "minItems")}, {"type": "string"}],
        "description": f"{words['description']} A line of text is split at its blanks.",
    }
    workload["properties"] |= {
        "built_in": {
            "type": "string",
            "description": "In the place of `command`: a built-in training; `advisor workloads` lists them.",
        },
        "nproc_per_node": {
            "type": "integer",
            "minimum": 1,
            "default": 2,
            "description": "With `built_in`: processes on each node.",
        },
        "arguments": {
            "anyOf": [{"type": "string"}, {"type": "array"}],
            "default": [],
            "description": "With `built_in`: the training's own options.",
        },
    }
    del workload["required"]
    workload["oneOf"] = [{"required": ["command"]}, {"required": ["built_in"]}]
    testbed = schema["properties"]["testbed"]
    testbed["anyOf"].insert(0, {"type": "string", "description": "`nodes=2,rate=1gbit`"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A job file of Fleet Advisor",
    }


def describe_job_file() -> str:
    """Return `docs/job-file.md`."""
    schema = _make_job_schema()
    lines = [
        "# The job file",
        "",
        f"{MADE} What is not written has its default; a field that does not exist is refused.",
        "",
        "```yaml",
        "# yaml-language-server: $schema=job.schema.json",
        *EXAMPLE.splitlines(),
        "```",
        "",
        "```",
        "advisor submit job.yaml --dry-run     # what it would do; nothing is stored",
        "advisor submit job.yaml",
        "```",
        "",
        "Editors complete and check it by its [JSON Schema](job.schema.json). Programs send the same fields to",
        "`POST /api/v1/jobs` ([REST API](rest-api.md)); there `command` is a list, and `built_in` is not known.",
        "A relative `working_dir` is relative to the file.",
        "",
        *_describe_fields("The job", schema, schema),
    ]
    inner = {"workload": "Workload", "budget": "Budget", "measurement": "Measurement", "testbed": "Testbed"}
    for name, model in inner.items():
        lines += _describe_fields(f"`{name}`", schema["$defs"][model], schema)
    return "\n".join(lines).rstrip() + "\n"


def _describe_fields(title: str, model: JSON, schema: JSON) -> Iterator[str]:
    yield from (f"## {title}", "", "| field | type | default | meaning |", "|---|---|---|---|")
    for name, field in model["properties"].items():
        definition = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
        meaning = field.get("description") or definition.get("description", "")
        if name in model.get("required", ()):
            default = "required"
        else:
            default = "" if "properties" in definition else _write_default(field)
        yield f"| `{name}` | {_name_type(field, schema)} | {default} | {_cell(meaning)} |"
    yield ""


def _write_default(field: JSON) -> str:
    default = field.get("default")
    return "" if default in (None, "", [], {}) else f"`{json.dumps(default)}`".replace('"', "")


def _name_type(field: JSON, schema: JSON) -> str:
    if "anyOf" in field:
        return " or ".join(_name_type(one, schema) for one in field["anyOf"] if one.get("type") != "null")
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = schema["$defs"][name]
        if "enum" in definition:
            return ", ".join(f"`{value}`" for value in definition["enum"])
        fields = f"[fields](#{name.lower()})"
        return fields if name in {"Workload", "Budget", "Measurement", "Testbed"} else "made by `--sign`"
    kind = {"array": "list", "object": "map", "string": "text", "boolean": "true or false"}.get(
        field["type"], field["type"]
    )
    return _cell(f"{kind}{_name_limits(field)}")


def _name_limits(field: JSON) -> str:
    words = []
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in field:
            words.append(f"{sign} {field[key]:g}")
    if "maxLength" in field:
        words.append(f"at most {field['maxLength']} characters")
    if "maxItems" in field or "maxProperties" in field:
        words.append(f"at most {field.get('maxItems', field.get('maxProperties'))}")
    return f" {', '.join(words)}" if words else ""


def _cell(text: str) -> str:
    # Every other piece is code, where Markdown leaves < alone.
    pieces = re.sub(r"\s+", " ", text).replace("|", "\\|").strip().split("`")
    pieces[::2] = [piece.replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)


_SAID_BY_AGENTS = {"post /api/v1/agents", "post /api/v1/agents/{agent_id}/poll"}


def describe_rest_api() -> str:
    """Return `docs/rest-api.md`, from the OpenAPI document that a contract test holds against the code."""
    document = json.loads((ROOT / "tests/contracts/openapi.json").read_text(encoding="utf-8"))
    lines = [
        "# REST API",
        "",
        f"{MADE} A running server shows the same with every field and answer at `/docs`; the OpenAPI document is",
        "`/api/v1/openapi.json`.",
        "",
        "```",
        'curl -H "Authorization: Bearer $ADVISOR_TOKEN" "$ADVISOR_URL/api/v1/jobs?state=running"',
        "```",
        "",
        "* Every request carries a token ([who may what](operating.md#tokens)), but for `/livez`, `/readyz` and what "
        "describes the API (`/docs`, `/api/v1/openapi.json`).",
        "* An error is a problem document: `code` for programs, `detail` and `hint` for people.",
        "* Lists come in pages: pass `next_cursor` as `cursor` until it is null.",
        "* A job's `ETag` changes with every transition; `If-Match` makes a change conditional",
        "  ([Changing jobs](jobs.md#changing-jobs)).",
        "* A request with an `Idempotency-Key` may be repeated: it is done once.",
        "* What agents say (`POST /api/v1/agents`, `…/poll`, all of `sessions`) is no place for your programs.",
        "  It stands in the OpenAPI document only.",
        "",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["tags"][0] == "sessions" or f"{method} {path}" in _SAID_BY_AGENTS:
                continue
            row = _describe_operation(f"{method.upper()} {path}", operation)
            by_tag.setdefault(operation["tags"][0], []).append(row)
    for tag, rows in by_tag.items():
        lines += [
            f"## {tag.capitalize()}",
            "",
            "| request | what it does | takes |",
            "|---|---|---|",
        ]
        lines += [*rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _describe_operation(request: str, operation: JSON) -> str:
    query = [f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] == "query"]
    body = _name_model(operation.get("requestBody", {}))
    takes = ", ".join(([f"body `{body}`"] if body else []) + query)
    meaning = _cell(operation["description"].partition("\n\n")[0])
    return f"| `{request}` | **{operation['summary']}.** {meaning} | {takes} |"


def _name_model(content: JSON) -> str:
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    if schema.get("type") == "array":
        return f"list of {schema['items'].get('$ref', '').rpartition('/')[2]}"
    return str(schema.get("$ref", "").rpartition("/")[2])


def list_commands() -> dict[str, dict[str, Any]]:
    """Return the parsers of both programs' commands, by program and name."""
    import typer
    from typer.main import get_command

    from advisor.cli.program import build_app
    from agent.cli import app as agent_app
    from agent.production.__main__ import run

    advisor: Any = get_command(build_app())
    agent: Any = get_command(agent_app)
    # These two commands hand their words on to the node's side, which reads them.
    production = typer.Typer(add_completion=False)
    production.command("run", context_settings={"allow_interspersed_args": False})(run)
    others = {"run": get_command(production), "diagnose": agent.commands["diagnose"]}
    return {"advisor": {**advisor.commands, **others}, "advisor-agent": dict(agent.commands)}


def describe_command_line() -> str:
    """Return `docs/cli.md`."""
    lines = [
        "# The command line",
        "",
        f"{MADE} `advisor COMMAND --help` says the same.",
        "Results go to standard output and progress to standard error; `--json` prints a result as JSON, for programs.",
        "`JOB` is a job's id, the start of it, its name, or `last`.",
        "An option that several commands have with one meaning is explained at the first of them.",
        "[Exit codes](troubleshooting.md#exit-codes-of-advisor).",
        "",
    ]
    told: dict[str, str] = {}
    for program, commands in list_commands().items():
        for name, command in commands.items():
            if (program, name) != ("advisor-agent", "diagnose"):
                lines += _describe_command(f"{program} {name}", command, told)
    return "\n".join(lines).rstrip() + "\n"


def _describe_command(name: str, command: Any, told: dict[str, str]) -> Iterator[str]:
    """Write a command with its options; `told` has the lines of options that stand above, each with its command."""
    if hasattr(command, "commands"):
        for inner, one in command.commands.items():
            yield from _describe_command(f"{name} {inner}", one, told)
        return
    words = [name]
    options = []
    for param in command.params:
        if "--json" in param.opts:
            words.insert(1, "[--json]")
            continue
        if param.param_type_name == "argument":
            words.append(param.metavar or param.name.upper())
        elif not param.hidden and param.name != "help":
            options.append(param)
    summary = _cell((command.help or "").partition("\n\n")[0])
    yield from (f"## {name}", "", f"`{' '.join(words)}`", "", summary, "")
    above: dict[str, list[str]] = {}
    for option in options:
        spelled = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
        line = f"* {spelled}{f' {option.metavar}' if option.metavar else ''}: {_cell(option.help or '')}"
        if line in told:
            above.setdefault(told[line], []).append(spelled)
        else:
            told[line] = name
            yield line
    yield from (f"* As in `{first}`: {', '.join(same)}." for first, same in above.items())
    if options:
        yield ""


def describe_decisions() -> str:
    """Return `docs/decisions/README.md`."""
    return _list_pages(
        "Decisions", "decisions", "Where the design changed, or could have gone another way: why it is so."
    )


def describe_results() -> str:
    """Return `docs/results/README.md`."""
    purpose = "What was measured: today's figure with its command, machine and date; earlier ones are in git."
    return _list_pages("Results", "results", purpose)


def _list_pages(title: str, folder: str, purpose: str) -> str:
    pages = [page for page in sorted((ROOT / "docs" / folder).glob("*.md")) if page.name != "README.md"]
    titles = (page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for page in pages)
    rows = [f"* [{name}]({page.name})" for name, page in zip(titles, pages, strict=True)]
    made = "This list is made by `python docs/make_reference.py`."
    return "\n".join([f"# {title}", "", f"{purpose} {made}", "", *rows]) + "\n"


PAGES: Mapping[str, Any] = {
    "job.schema.json": describe_job_schema,
    "job-file.md": describe_job_file,
    "rest-api.md": describe_rest_api,
    "cli.md": describe_command_line,
    "decisions/README.md": describe_decisions,
    "results/README.md": describe_results,
}
"""What is written below docs/, each with the function that makes its text."""
