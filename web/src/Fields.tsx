import type { Asked, Choices, Example } from "./asked";

interface Props {
  choices: Choices;
  asked: Asked;
  errors: Record<string, string>;
  onAsked: (asked: Asked) => void;
  onExample: (example: Example) => void;
}

/** The fields, each with what is wrong with it beside it, and the examples that are one click away. */
export function Fields({ choices, asked, errors, onAsked, onExample }: Props) {
  const change = (field: keyof Asked) => (value: string) => onAsked({ ...asked, [field]: value });
  return (
    <form class="fields" aria-label="What is planned" onSubmit={(event) => event.preventDefault()}>
      <p class="brand">Meshwright</p>
      <Text
        name="system"
        label="System"
        hint={`a preset, or ${choices.system_example}`}
        value={asked.system}
        error={errors.system}
        onChange={change("system")}
      />
      <Examples title="Presets" all={choices.presets} chosen={asked.system.split(":")[0]!} onExample={onExample} />
      <Text
        name="axes"
        label="Axes"
        hint="like data=4,shard=16"
        value={asked.axes}
        error={errors.axes}
        onChange={change("axes")}
      />
      <div class="field">
        <label for="workload">What is sent</label>
        <select
          id="workload"
          value={asked.workload}
          aria-invalid={Boolean(errors.workload)}
          onChange={(event) => {
            const name = event.currentTarget.value;
            const found = choices.workloads.find((each) => each.name === name);
            if (found) onExample(found);
            else change("workload")("");
          }}
        >
          <option value="">reductions, as written below</option>
          {choices.workloads.map(({ name, about }) => (
            <option value={name}>
              {name}: {about}
            </option>
          ))}
        </select>
        <Wrong name="workload" text={errors.workload} />
      </div>
      <Examples title="Workloads" all={choices.workloads} chosen={asked.workload} onExample={onExample} />
      {(asked.workload || asked.choose) && (
        <Text
          name="choose"
          label="Sizes to choose"
          hint="axes like data,tensor, which are then left out of Axes"
          value={asked.choose}
          error={errors.choose}
          onChange={change("choose")}
        />
      )}
      {!asked.workload && (
        <Text
          name="reductions"
          label="Reductions"
          hint="a line each: [goal:]axis[+axis]=bytes[*count]"
          value={asked.reductions}
          error={errors.reductions}
          lines
          onChange={change("reductions")}
        />
      )}
      <Choice
        name="library"
        label="Library"
        none="that of the system"
        all={choices.libraries}
        value={asked.library}
        error={errors.library}
        onChange={change("library")}
      />
      <Text
        name="constraints"
        label="Constraints"
        hint="a line each, like inside shard=node"
        value={asked.constraints}
        error={errors.constraints}
        lines
        onChange={change("constraints")}
      />
      <Programs choices={choices} asked={asked} errors={errors} change={change} />
      <Wrong name="all" text={errors[""]} />
      <p class="hint">The address of this page is a link to what it shows.</p>
    </form>
  );
}

interface ProgramsProps extends Pick<Props, "choices" | "asked" | "errors"> {
  change: (field: keyof Asked) => (value: string) => void;
}

const OF_PROGRAMS = ["engine", "chunks", "max_steps", "no_rooted", "placement_only"] as const;

/** What programs may be made of: open where something of it is set, or wrong. */
function Programs({ choices, asked, errors, change }: ProgramsProps) {
  const number = (field: "chunks" | "max_steps", label: string, hint: string) => (
    <Text
      name={field}
      label={label}
      hint={`${hint}: 1 to ${choices.most[field]}, ${choices.default[field]} unless said`}
      value={asked[field]}
      error={errors[field]}
      onChange={change(field)}
    />
  );
  const flag = (field: "no_rooted" | "placement_only", label: string) => (
    <div class="field">
      <label class="check">
        <input
          type="checkbox"
          checked={asked[field] === "yes"}
          aria-describedby={`${field}-wrong`}
          onChange={(event) => change(field)(event.currentTarget.checked ? "yes" : "")}
        />{" "}
        {label}
      </label>
      <Wrong name={field} text={errors[field]} />
    </div>
  );
  return (
    <details open={OF_PROGRAMS.some((field) => asked[field] || errors[field])}>
      <summary>Programs</summary>
      <Choice
        name="engine"
        label="Engine"
        none="what fits the library"
        all={choices.engines}
        value={asked.engine}
        error={errors.engine}
        onChange={change("engine")}
      />
      {number("chunks", "Chunks", "into how many a payload may be cut")}
      {number("max_steps", "Steps", "of the longest programs")}
      {flag("no_rooted", "without Reduce and Broadcast")}
      {flag("placement_only", "placement only: the library’s own collectives")}
    </details>
  );
}

interface ChoiceProps {
  name: string;
  label: string;
  none: string;
  all: string[];
  value: string;
  error: string | undefined;
  onChange: (value: string) => void;
}

/** One of some names, or none. */
function Choice({ name, label, none, all, value, error, onChange }: ChoiceProps) {
  // A name that is not among them, from an address, stays what is asked, and gets its message.
  const known = value && !all.includes(value) ? [...all, value] : all;
  return (
    <div class={error ? "field wrong" : "field"}>
      <label for={name}>{label}</label>
      <select
        id={name}
        value={value}
        aria-invalid={Boolean(error)}
        aria-describedby={`${name}-wrong`}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        <option value="">{none}</option>
        {known.map((each) => (
          <option value={each}>{each}</option>
        ))}
      </select>
      <Wrong name={name} text={error} />
    </div>
  );
}

interface TextProps {
  name: string;
  label: string;
  hint: string;
  value: string;
  error: string | undefined;
  lines?: boolean;
  onChange: (value: string) => void;
}

function Text({ name, label, hint, value, error, lines, onChange }: TextProps) {
  const common = {
    id: name,
    value,
    spellcheck: false,
    autocomplete: "off",
    maxLength: 4000,
    "aria-invalid": Boolean(error),
    "aria-describedby": error ? `${name}-wrong ${name}-hint` : `${name}-hint`,
  };
  return (
    <div class={error ? "field wrong" : "field"}>
      <label for={name}>{label}</label>
      {lines ? (
        <textarea {...common} rows={3} onInput={(event) => onChange(event.currentTarget.value)} />
      ) : (
        <input type="text" {...common} onInput={(event) => onChange(event.currentTarget.value)} />
      )}
      <Wrong name={name} text={error} />
      <p class="hint" id={`${name}-hint`}>
        {hint}
      </p>
    </div>
  );
}

function Wrong({ name, text }: { name: string; text: string | undefined }) {
  return (
    <p class="error" id={`${name}-wrong`} role="status">
      {text ? `${text}` : ""}
    </p>
  );
}

interface ExamplesProps {
  title: string;
  all: (Example & { name: string; about: string })[];
  chosen: string;
  onExample: (example: Example) => void;
}

function Examples({ title, all, chosen, onExample }: ExamplesProps) {
  return (
    <div class="examples" role="group" aria-label={title}>
      {all.map((each) => (
        <button type="button" title={each.about} aria-pressed={each.name === chosen} onClick={() => onExample(each)}>
          {each.name}
        </button>
      ))}
    </div>
  );
}
