//go:build linux

package installer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/redirect"
)

// The plugin's configuration, in the order a reader wants it. The names are the plugin's contract.
type entry struct {
	CNIVersion   string `json:"cniVersion,omitempty"`
	Name         string `json:"name,omitempty"`
	Type         string `json:"type"`
	Dialect      string `json:"dialect"`
	Backend      string `json:"backend"`
	LogLevel     string `json:"log_level"`
	RunDir       string `json:"run_dir"`
	PodNamespace string `json:"pod_namespace"`
	AddDeadline  string `json:"add_deadline"`
	// Left out where they are the plugin's defaults: an entry of an earlier version stays as it is.
	UncapturedFamily  redirect.UncapturedFamily `json:"uncaptured_family,omitempty"`
	RefuseProxyUID    bool                      `json:"refuse_proxy_uid,omitempty"`
	WriteStatus       bool                      `json:"write_status,omitempty"`
	ReadyWithoutAgent bool                      `json:"ready_without_agent,omitempty"`

	Kubernetes entryKubernetes `json:"kubernetes"`
	// The runtime then hands over the pod's annotations, and pods they rule out cost no API call.
	Capabilities map[string]bool `json:"capabilities"`
}

type entryKubernetes struct {
	Kubeconfig        string   `json:"kubeconfig"`
	ExcludeNamespaces []string `json:"exclude_namespaces"`
	CNIBinDir         string   `json:"cni_bin_dir"`
}

// A plugin's type is a file name that the runtime joins to its binary directory, so it may not lead elsewhere.
var typeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// Entry is the plugin's configuration: rendered from the fields, or PluginConfig with these words replaced:
// __KUBECONFIG_FILEPATH__, __KUBECONFIG_FILENAME__, __KUBERNETES_SERVICE_HOST__, __KUBERNETES_SERVICE_PORT__ and
// __LOG_LEVEL__.
//
// Errors: errors.Is(err, conflist.ErrInvalid) for a PluginConfig that no runtime would take.
func (c Config) Entry() ([]byte, error) {
	if c.PluginConfig != "" {
		return c.fromTemplate()
	}
	e := entry{
		Type: PluginName, Dialect: c.Dialect, Backend: c.Backend, LogLevel: c.LogLevel, RunDir: onHost(c.RunDir),
		PodNamespace: c.PodNamespace, AddDeadline: c.AddDeadline.String(),
		Kubernetes: entryKubernetes{
			Kubeconfig:        onHost(c.kubeconfig()),
			ExcludeNamespaces: append([]string{}, c.ExcludeNamespaces...),
		},
		Capabilities: map[string]bool{annotationsCapability: true},
	}
	e.RefuseProxyUID, e.WriteStatus, e.ReadyWithoutAgent = c.RefuseProxyUID, c.WriteStatus, c.ReadyWithoutAgent
	if c.UncapturedFamily != redirect.UncapturedAllow {
		e.UncapturedFamily = c.UncapturedFamily
	}
	if len(c.CNIBinDirs) > 0 {
		e.Kubernetes.CNIBinDir = onHost(c.CNIBinDirs[0])
	}
	if !c.Chained {
		e.CNIVersion, e.Name = "1.0.0", PluginName
	}
	return marshal(e), nil
}

func (c Config) fromTemplate() ([]byte, error) {
	quoted := func(s string) string { return strings.Trim(string(marshalLine(s)), `"`) }
	text := strings.NewReplacer(
		"__KUBECONFIG_FILEPATH__", quoted(onHost(c.kubeconfig())),
		"__KUBECONFIG_FILENAME__", "kubeconfig",
		"__KUBERNETES_SERVICE_HOST__", quoted(c.KubernetesHost),
		"__KUBERNETES_SERVICE_PORT__", quoted(c.KubernetesPort),
		"__LOG_LEVEL__", quoted(c.LogLevel),
	).Replace(c.PluginConfig)
	f, err := conflist.ParseFile(".conf", []byte(text))
	if err != nil {
		return nil, fmt.Errorf("reading the plugin's configuration template: %w", err)
	}
	if name := f.Plugins()[0].Type; !typeName.MatchString(name) {
		return nil, fmt.Errorf("reading the plugin's configuration template: %w: type %q is no file name", conflist.ErrInvalid, name)
	}
	return []byte(text), nil
}

// pluginType is the entry's type: the name of the binary in the runtime's directory.
func pluginType(entry []byte) string {
	f, err := conflist.ParseFile(".conf", entry)
	if err != nil {
		return PluginName
	}
	return f.Plugins()[0].Type
}

// agentNamespace is the namespace of the agent's own pods, as the plugin is told it.
func (c Config) agentNamespace() string {
	data, err := c.Entry()
	if err != nil {
		return c.PodNamespace
	}
	var e struct {
		PodNamespace string `json:"pod_namespace"`
	}
	if json.Unmarshal(data, &e) != nil || e.PodNamespace == "" {
		return Default().PodNamespace // the plugin's default too
	}
	return e.PodNamespace
}

func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // of strings, slices and maps of them
	return b.Bytes()
}

func marshalLine(v any) []byte {
	data, _ := json.Marshal(v)
	return data
}
