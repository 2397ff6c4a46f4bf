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
      <div class="field">
        <label for="library">Library</label>
        <select id="library" value={asked.library} onChange={(event) => change("library")(event.currentTarget.value)}>
          <option value="">that of the system</option>
          {choices.libraries.map((name) => (
            <option value={name}>{name}</option>
          ))}
        </select>
        <Wrong name="library" text={errors.library} />
      </div>
      <Text
        name="constraints"
        label="Constraints"
        hint="a line each, like inside shard=node"
        value={asked.constraints}
        error={errors.constraints}
        lines
        onChange={change("constraints")}
      />
      <Wrong name="all" text={errors[""]} />
      <p class="hint">The address of this page is a link to what it shows.</p>
    </form>
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
