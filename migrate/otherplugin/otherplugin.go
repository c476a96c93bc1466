// Package otherplugin has the CNI plugins of other meshes' own, from which a cluster can move to this one: how each is recognized, and what
// becomes of its settings. It does no I/O. [Known] are those of the meshes whose dialects are in this module; yours goes to migrate.Program.
package otherplugin

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
)

// Known returns those of Istio, Linkerd, Kuma and Consul.
func Known() []Plugin { return []Plugin{istioCNI, linkerdCNI, kumaCNI, consulCNI} }

// Plugin is a mesh's own CNI plugin, from which a cluster can move to this one.
type Plugin struct {
	// Mesh is the name of its dialect.
	Mesh string
	// Type is that of its entry in the network configuration, and its name.
	Type string
	// DaemonSet tells that of its installer from others; one mark is enough.
	DaemonSet []Mark
	// Settings are those that the installer reads: variables, flags with two dashes, keys of its network configuration such as
	// linkerd.proxy-uid, "volume NAME" and "container NAME".
	Settings map[string]Translate
	// Before and Remove are steps for people: what to heed before the move, and how to remove the plugin.
	Before, Remove []string
}

// Mark tells a DaemonSet by all that is set.
type Mark struct {
	Labels map[string]string
	// ConfigMap ends the name of one that the containers take variables from, and each of Words a word of their commands.
	ConfigMap string
	Words     []string
}

// Installs reports whether a DaemonSet with these labels and pods installs the plugin. ConfigMaps are the names of those that its
// containers take variables from.
func (p Plugin) Installs(labels map[string]string, pod *corev1.PodSpec, configMaps []string) bool {
	ends := func(all []string, suffix string) bool {
		return slices.ContainsFunc(all, func(s string) bool { return strings.HasSuffix(s, suffix) })
	}
	var words []string
	for _, c := range pod.Containers {
		words = slices.Concat(words, c.Command, c.Args)
	}
	return slices.ContainsFunc(p.DaemonSet, func(m Mark) bool {
		for key, value := range m.Labels {
			if labels[key] != value {
				return false
			}
		}
		return (m.ConfigMap == "" || ends(configMaps, m.ConfigMap)) && !slices.ContainsFunc(m.Words, func(w string) bool { return !ends(words, w) })
	})
}

// Translate says what becomes of a setting's value, beside all values that were said. It is pure.
type Translate func(value string, said map[string]string) Outcome

// Outcome of a setting's translation: exactly one of Path, Needless, Undone and Err is set.
type Outcome struct {
	// Path is that of the value in this module's chart which the setting becomes, and Value that.
	Path  string
	Value any
	// Needless is the reason that nothing is to be done.
	Needless string
	// Undone leaves a decision to people, since the setting has no equal. Rules: it changes who or what is captured.
	Undone string
	Rules  bool
	// Err says that the value is not understood.
	Err error

	// Also is set in the chart besides, and Step is one more for people.
	Also map[string]any
	Step string
	// OnNode is the dialect of a mesh with a proxy on the node, which the setting switches on.
	OnNode string
	// Change makes of a pod's rules what the other plugin makes of the setting, unless the pod or its namespace has the Annotation.
	Change     func(*redirect.Redirect) error
	Annotation string
}

// --- The usual translations ----------------------------------------------------------------------------------------------

// Keep is for a setting that the chart has too, under a path.
func Keep(path string, read func(string) (any, error)) Translate {
	return func(value string, _ map[string]string) Outcome {
		v, err := read(value)
		if err != nil {
			return Outcome{Err: err}
		}
		return Outcome{Path: path, Value: v}
	}
}

// Needless is for a setting that needs nothing.
func Needless(why string) Translate {
	return func(string, map[string]string) Outcome { return Outcome{Needless: why} }
}

// Unless is for a setting that needs nothing as long as it has a usual value.
func Unless(why, do string, rules bool, usual ...string) Translate {
	return func(value string, _ map[string]string) Outcome {
		if slices.Contains(usual, strings.ToLower(strings.TrimSpace(value))) {
			return Outcome{Needless: why}
		}
		return Outcome{Undone: do, Rules: rules}
	}
}

// Optional is for one that may be empty.
func Optional(otherwise Translate) Translate {
	return func(value string, said map[string]string) Outcome {
		if strings.TrimSpace(value) == "" {
			return Outcome{Needless: "it is empty, as here by default"}
		}
		return otherwise(value, said)
	}
}

// OneOf is for a setting with words that the chart calls otherwise; an empty one of these needs nothing.
func OneOf(path string, words map[string]string, needless, otherwise string) Translate {
	return func(value string, _ map[string]string) Outcome {
		word, ok := words[strings.TrimSpace(value)]
		switch {
		case !ok:
			return Outcome{Err: errors.New(otherwise)}
		case word == "":
			return Outcome{Needless: needless}
		}
		return Outcome{Path: path, Value: word}
	}
}

// With is for a setting that counts only with another, a boolean.
func With(other, without string, then Translate) Translate {
	return func(value string, said map[string]string) Outcome {
		if !Is(said[other]) {
			return Outcome{Needless: without}
		}
		return then(value, said)
	}
}

// PartOf is for a setting that the Translate of another one reads.
func PartOf(other string) Translate {
	return func(_ string, said map[string]string) Outcome {
		if _, ok := said[other]; ok {
			return Outcome{Needless: "part of " + other}
		}
		return Outcome{Undone: "does nothing without " + other + ", which is not set: see what the other's default means to you"}
	}
}

// Chained is for whether the plugin is an entry of the network's list. Otherwise pods ask Multus for it by its name, which is another here.
func Chained(value string, _ map[string]string) Outcome {
	on, err := Truth(value)
	o := Outcome{Path: "cni.chained", Value: on}
	switch {
	case err != nil:
		return Outcome{Err: err}
	case on == false:
		o.Also = map[string]any{"networkAttachmentDefinition.enabled": true}
		o.Step = "Pods ask Multus for the other plugin by the annotation k8s.v1.cni.cncf.io/networks, which the injector writes: tell it to write default/meshcni."
	}
	return o
}

// ConfName is for the network's file. It is the plugin's own, which must not be ours, if the setting owned is true or chained is false.
func ConfName(chained, owned string) Translate {
	return Optional(func(value string, said map[string]string) Outcome {
		if c, ok := said[chained]; Is(said[owned]) || ok && !Is(c) {
			return Outcome{Needless: "the other's own file, which ours must not have; remove it if its uninstall leaves it"}
		}
		return Outcome{Path: "cni.confName", Value: value}
	})
}

// Reasons that several plugins share.
const (
	Bookkeeping = "its installer's own"
	StartWay    = "how its container starts"
	ListCounts  = "the list's counts"
)

// --- Values --------------------------------------------------------------------------------------------------------------

// Text reads any text but an empty one.
func Text(v string) (any, error) {
	if strings.TrimSpace(v) == "" {
		return nil, errors.New("it is empty")
	}
	return strings.TrimSpace(v), nil
}

// Path reads an absolute path.
func Path(v string) (any, error) {
	if !strings.HasPrefix(v, "/") {
		return nil, errors.New("it is no absolute path")
	}
	return v, nil
}

// Paths reads one absolute path as a list.
func Paths(v string) (any, error) {
	p, err := Path(v)
	if err != nil {
		return nil, err
	}
	return []any{p}, nil
}

// Truth reads a bool as strconv.ParseBool does, which all of the plugins use.
func Truth(v string) (any, error) {
	switch strings.TrimSpace(v) {
	case "1", "t", "T", "true", "TRUE", "True":
		return true, nil
	case "0", "f", "F", "false", "FALSE", "False":
		return false, nil
	}
	return nil, errors.New("it is neither true nor false")
}

// Is reports whether a value is true.
func Is(v string) bool {
	on, err := Truth(v)
	return err == nil && on == true
}

// Words reads a list that is separated by commas.
func Words(v string) (any, error) {
	names := []string{}
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Level reads a level as loggers have it.
func Level(v string) (any, error) {
	switch l := strings.ToLower(strings.TrimSpace(v)); l {
	case "debug", "info", "warn", "error":
		return l, nil
	case "trace", "all":
		return "debug", nil
	case "warning":
		return "warn", nil
	case "err", "fatal", "panic", "none", "off":
		return "error", nil
	}
	return nil, errors.New("it is none of debug, info, warn and error")
}
