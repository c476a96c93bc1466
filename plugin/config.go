package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/internal/pluginlog"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Defaults of [Config].
const (
	DefaultRunDir       = "/var/run/meshcni"
	DefaultPodNamespace = "meshcni-system"
	DefaultAddDeadline  = 30 * time.Second
	DefaultKubeconfig   = DefaultRunDir + "/kubeconfig"
	DefaultCNIBinDir    = "/opt/cni/bin"
)

// AnnotationsCapability is the capability under which containerd passes a pod's annotations, when the plugin's entry
// in the network configuration declares it.
const AnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// Config is the plugin's configuration: what is on stdin. The comments name the keys. A key that is absent, null or an
// empty string has its default.
type Config struct {
	CNIVersion string // cniVersion
	Name       string // name, of the network
	Type       string // type

	Dialect          string                    // dialect; empty is left to Plugin.Dialect
	Backend          apply.Name                // backend; auto
	LogLevel         slog.Level                // log_level: debug, info, warn, error; info
	RunDir           string                    // run_dir; DefaultRunDir
	PodNamespace     string                    // pod_namespace: where the agent's own pods are; DefaultPodNamespace
	AddDeadline      time.Duration             // add_deadline: the most that ADD or CHECK may take, above 0; DefaultAddDeadline
	UncapturedFamily redirect.UncapturedFamily // uncaptured_family; UncapturedAllow
	WriteStatus      bool                      // write_status: whether to say on the pod that its rules are in place, where its mesh has an annotation for it; false
	RefuseProxyUID   bool                      // refuse_proxy_uid: whether a container that the rules may take for the proxy refuses its pod; false

	// ready_without_agent: whether STATUS says ready before the agent has written the kubeconfig; false. A runtime that
	// is told otherwise starts no pod at all, so this is for an agent that is a pod of the node's network.
	ReadyWithoutAgent bool

	Kubeconfig        string   // kubernetes.kubeconfig; DefaultKubeconfig
	ExcludeNamespaces []string // kubernetes.exclude_namespaces; none
	CNIBinDir         string   // kubernetes.cni_bin_dir, for the installer; DefaultCNIBinDir

	// Annotations are all of the pod's, by the runtime's word (runtimeConfig, AnnotationsCapability); nil: unknown.
	Annotations map[string]string
	// PrevResult is the previous plugin's; nil: none.
	PrevResult *PrevResult
	// Unknown are keys that mean nothing here.
	Unknown []string
}

// ParseConfig reads a network configuration as a runtime passes it. The error names every key that has a wrong type or
// an unknown value; it is a *json.SyntaxError or *json.UnmarshalTypeError (use errors.As) when the text is no JSON
// object at all. The Config has then what could be read, and defaults.
func ParseConfig(text []byte) (Config, error) {
	c := Config{
		Backend:          apply.Auto,
		RunDir:           DefaultRunDir,
		PodNamespace:     DefaultPodNamespace,
		AddDeadline:      DefaultAddDeadline,
		UncapturedFamily: redirect.UncapturedAllow,
		Kubeconfig:       DefaultKubeconfig,
		CNIBinDir:        DefaultCNIBinDir,
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return c, err
	}
	if all == nil {
		return c, &json.UnmarshalTypeError{Value: "null", Type: mapType}
	}
	var errs []error
	top := object{keys: all, errs: &errs, unknown: &c.Unknown}
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
	top.parsed("backend", func(s string) (err error) { c.Backend, err = apply.ParseBackend(s); return })
	top.parsed("log_level", func(s string) (err error) { c.LogLevel, err = pluginlog.ParseLevel(s); return })
	top.parsed("add_deadline", func(s string) (err error) {
		c.AddDeadline, err = time.ParseDuration(s)
		if err == nil && c.AddDeadline <= 0 {
			err = errors.New("want a duration above 0")
		}
		return err
	})
	kubernetes := top.object("kubernetes")
	kubernetes.text("kubeconfig", &c.Kubeconfig)
	kubernetes.text("cni_bin_dir", &c.CNIBinDir)
	kubernetes.into("exclude_namespaces", "a list of strings", &c.ExcludeNamespaces)
	kubernetes.rest()

	runtime := top.object("runtimeConfig") // of it, other keys are other plugins'
	runtime.into(AnnotationsCapability, "an object of strings", &c.Annotations)

	if raw, ok := top.take("prevResult"); ok {
		prev, err := parsePrevResult(raw, c.CNIVersion)
		if err != nil {
			errs = append(errs, fmt.Errorf("prevResult: %w", err))
		}
		c.PrevResult = prev
	}
	for _, key := range standardKeys {
		delete(all, key)
	}
	top.rest()
	slices.Sort(c.Unknown)
	return c, errors.Join(errs...)
}

// standardKeys are the CNI specification's, for runtimes and for plugins that give addresses.
var standardKeys = []string{
	"cniVersions", "capabilities", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "args", "ipam", "ipMasq", "dns",
}

// object takes the keys of a JSON object one by one.
type object struct {
	path    string // with a dot at the end
	keys    map[string]json.RawMessage
	errs    *[]error
	unknown *[]string
}

// take removes a key. A null counts as absent.
func (o object) take(key string) (json.RawMessage, bool) {
	raw, ok := o.keys[key]
	delete(o.keys, key)
	return raw, ok && !bytes.Equal(raw, []byte("null"))
}

// maxWrong is how many bytes are said about one key.
const maxWrong = 400

func (o object) wrong(key, format string, args ...any) {
	*o.errs = append(*o.errs, fmt.Errorf("%s%s: %s", o.path, key, brief.Text(fmt.Sprintf(format, args...), maxWrong)))
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

// text takes a string, one of the allowed ones if there are such.
func (o object) text(key string, value *string, allowed ...string) {
	o.parsed(key, func(s string) error {
		if len(allowed) > 0 && !slices.Contains(allowed, s) {
			return fmt.Errorf("%s is not one of %s", brief.Quote(s), strings.Join(allowed, ", "))
		}
		*value = s
		return nil
	})
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
	inner := object{path: o.path + key + ".", errs: o.errs, unknown: o.unknown}
	o.into(key, "an object", &inner.keys)
	return inner
}

// rest makes what was not taken unknown. The specification reserves "cni.dev/".
func (o object) rest() {
	for key := range o.keys {
		if !strings.HasPrefix(key, "cni.dev/") {
			*o.unknown = append(*o.unknown, o.path+key)
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
