package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
)

// Parse reads the configuration that a runtime passes to the plugin, or an
// entry that an installer wrote. unknown lists the keys that mean nothing to the
// plugin; they are ignored.
//
// The error names every key that has a wrong type or an unknown value. The
// Config then holds what could be read, and defaults for the rest. For text that
// is no JSON object, errors.As finds a *json.SyntaxError or a
// *json.UnmarshalTypeError.
func Parse(text []byte) (c Config, unknown []string, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return defaults(), nil, err
	}
	if all == nil {
		return defaults(), nil, &json.UnmarshalTypeError{Value: "null", Type: reflect.TypeOf(all)}
	}
	p := &parser{}
	top := object{parser: p, keys: all}
	top.text("cniVersion", &c.CNIVersion)
	top.text("name", &c.Name)
	top.text("type", &c.Type)
	top.text("dialect", &c.Dialect)
	top.text("run_dir", &c.RunDir)
	top.text("pod_namespace", &c.PodNamespace)
	top.parsed("uncaptured_family", func(s string) (err error) { c.UncapturedFamily, err = redirect.ParseUncapturedFamily(s); return })
	top.into("refuse_proxy_uid", "true or false", &c.RefuseProxyUID)
	top.into("write_status", "true or false", &c.WriteStatus)
	top.into("ready_without_agent", "true or false", &c.ReadyWithoutAgent)
	top.parsed("backend", func(s string) (err error) { c.Backend, err = parseBackend(s); return })
	top.parsed("log_level", func(s string) (err error) { c.LogLevel, err = parseLogLevel(s); return })
	top.parsed("add_deadline", func(s string) (err error) { c.AddDeadline, err = parseDeadline(s); return })
	kubernetes := top.object("kubernetes")
	kubernetes.text("kubeconfig", &c.Kubernetes.Kubeconfig)
	kubernetes.text("cni_bin_dir", &c.Kubernetes.CNIBinDir)
	kubernetes.into("exclude_namespaces", "a list of strings", &c.Kubernetes.ExcludeNamespaces)
	kubernetes.rest()

	runtime := top.object("runtimeConfig") // its other keys belong to other plugins
	runtime.into(AnnotationsCapability, "an object of strings", &c.Annotations)

	c.PrevResult, _ = top.take("prevResult")
	for _, key := range standardKeys {
		delete(all, key)
	}
	top.rest()
	slices.Sort(p.unknown)
	return parsed(c), p.unknown, errors.Join(p.errs...)
}

// parsed fills in the defaults of a configuration that was read. The type stays
// empty, and the kubeconfig's default does not depend on run_dir.
func parsed(c Config) Config {
	typ := c.Type
	if c.Kubernetes.Kubeconfig == "" {
		c.Kubernetes.Kubeconfig = DefaultKubeconfig
	}
	c = c.withDefaults()
	c.Type = typ
	return c
}

func defaults() Config { return parsed(Config{}) }

func parseBackend(s string) (string, error) {
	if !isBackend(s) {
		return "", fmt.Errorf("backend %q: not one of %s", s, strings.Join(backends(), ", "))
	}
	return s, nil
}

func parseLogLevel(s string) (LogLevel, error) {
	l := LogLevel(strings.ToLower(s))
	if _, ok := levels[l]; !ok {
		return "", fmt.Errorf("log level %q: allowed are debug, info, warn, error", s)
	}
	return l, nil
}

func parseDeadline(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, err
	}
	if d <= 0 {
		return 0, errors.New("want a duration above 0")
	}
	return Duration(d), nil
}

// standardKeys are keys of the CNI specification that the plugin does not use:
// those for runtimes, and those for plugins that assign addresses.
var standardKeys = []string{
	"cniVersions", "capabilities", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "args", "ipam", "ipMasq", "dns",
}

// parser collects what is wrong and what is unknown.
type parser struct {
	errs    []error
	unknown []string
}

// object takes the keys of a JSON object one by one.
type object struct {
	*parser
	path string // with a dot at the end
	keys map[string]json.RawMessage
}

// take removes a key. A null counts as absent.
func (o object) take(key string) (json.RawMessage, bool) {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	if bytes.Equal(raw, []byte("null")) {
		return nil, false
	}
	return raw, ok
}

// maxWrong is how many bytes are said about one key.
const maxWrong = 400

func (o object) wrong(key, format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf("%s%s: %s", o.path, key, brief.Text(fmt.Sprintf(format, args...), maxWrong)))
}

func (o object) into(key, what string, value any) bool {
	raw, ok := o.take(key)
	if !ok {
		return false
	}
	if err := json.Unmarshal(raw, value); err != nil {
		o.wrong(key, "want %s, not %s", what, abbreviate(raw))
		return false
	}
	return true
}

func (o object) text(key string, value *string) {
	o.parsed(key, func(s string) error { *value = s; return nil })
}

// parsed takes a string that is not empty.
func (o object) parsed(key string, parse func(string) error) {
	var s string
	if !o.into(key, "a string", &s) || s == "" {
		return
	}
	if err := parse(s); err != nil {
		o.wrong(key, "%v", err)
	}
}

func (o object) object(key string) object {
	inner := object{parser: o.parser, path: o.path + key + "."}
	o.into(key, "an object", &inner.keys)
	return inner
}

// rest makes the keys that nobody took unknown. The specification reserves
// those that begin with "cni.dev/".
func (o object) rest() {
	for key := range o.keys {
		if !strings.HasPrefix(key, "cni.dev/") {
			o.unknown = append(o.unknown, o.path+key)
		}
	}
}

func abbreviate(raw json.RawMessage) string {
	const limit = 60
	if len(raw) > limit {
		return strings.ToValidUTF8(string(raw[:limit]), "") + "…"
	}
	return string(raw)
}
