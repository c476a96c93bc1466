package redirect

import (
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/misspelt"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/warning"
)

// maxUnknown bounds the unknown keys that are warned of by name: a tenant writes as many as fit a pod.
const maxUnknown = 8

// UnknownKeys warns of annotations that are no setting and look like one: those with one of the prefixes, which only the
// mesh has, and those that somebody misspelt. Known are the keys that mean something. [Schema.Build] does this by itself;
// it is for Build functions without a schema.
func UnknownKeys(source Source, annotations map[string]string, known, prefixes []string) warning.List {
	var warnings warning.List
	names := misspelt.Known(known)
	for key := range annotations {
		if slices.Contains(known, key) {
			continue
		}
		meant := names.Meant(key)
		if meant == "" && !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			continue
		}
		shown := strings.Trim(truncate.Quote(key), `"`)
		w := warning.New(warning.Unknown, key, "%s %s is not known, so it has no effect", source, shown)
		if meant != "" {
			w.Text += "; did you mean " + meant + "?"
		}
		warnings = append(warnings, w)
	}
	slices.SortFunc(warnings, func(a, b warning.Warning) int { return strings.Compare(a.Key, b.Key) })
	if more := len(warnings) - maxUnknown; more > 0 {
		warnings = append(warnings[:maxUnknown], warning.New(warning.Unknown, "", "%d more keys like a %s of the mesh are not known, so they have no effect", more, source))
	}
	return warnings
}

// unknown warns of the pod's annotations that look like the schema's, and of the namespace's where it is read.
func (s Schema) unknown(g Values) warning.List {
	known, inherited := slices.Clone(s.OtherKeys), false
	for _, setting := range s.Settings {
		if setting.Source != FromEnv {
			known = append(known, setting.Keys...)
			inherited = inherited || setting.Inherited
		}
	}
	warnings := UnknownKeys(FromAnnotation, g.Annotations, known, s.Prefixes)
	if inherited {
		warnings = append(warnings, UnknownKeys(FromNamespace, g.NamespaceAnnotations, known, s.Prefixes)...)
	}
	return warnings
}
