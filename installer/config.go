//go:build linux

package installer

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni/redirect"
)

// Config is what is wanted on the node. Paths are as this process sees them; those below "/host" are written into the
// plugin's configuration without that prefix, since the plugin runs on the host.
type Config struct {
	// BinSourceDir holds the plugin binary, a file named [PluginName], to install. Default /opt/meshcni/bin.
	BinSourceDir string
	// CNIBinDirs get the binary; they must exist. Default /host/opt/cni/bin.
	CNIBinDirs []string
	// CNIConfDir is the runtime's configuration directory. Default /host/etc/cni/net.d.
	CNIConfDir string
	// CNICacheDir is libcni's cache. Default /host/var/lib/cni.
	CNICacheDir string
	// CNIConfName names the file: chained, the one to edit instead of the one the runtime would load (.conf and .conflist
	// stand for each other); else, our own. Default none, 00-meshcni.conflist (OwnFile) and meshcni.conf (not Chained).
	CNIConfName string
	// Chained false writes a configuration of the plugin alone, for Multus to delegate to. Default true.
	Chained bool
	// OwnFile keeps a first-sorting list of our own, derived from the runtime's, instead of editing that.
	OwnFile bool
	// RunDir holds kubeconfig and log.sock, at the same path on the host. Default /var/run/meshcni.
	RunDir string
	// ServiceAccountDir holds token and ca.crt. Default /var/run/secrets/kubernetes.io/serviceaccount.
	ServiceAccountDir string
	// KubernetesHost, KubernetesPort and KubernetesProtocol make the API server's address. Default protocol https, port 443.
	KubernetesHost, KubernetesPort, KubernetesProtocol string
	// ExcludeNamespaces are those whose pods the plugin passes without asking.
	ExcludeNamespaces []string
	// Dialect, Backend and LogLevel go to the plugin as they are. Default istio, auto, info.
	Dialect, Backend, LogLevel string
	// PodNamespace is the agent's own, whose pods named as AgentPrefix says the plugin always lets through. A "pod_namespace"
	// of PluginConfig counts instead, since the plugin goes by it. Default meshcni-system.
	PodNamespace string
	// AgentPrefix begins the names of the agent's own pods: what plugin.Plugin has in its field of that name. An uninstall
	// need not wait for their end. Default meshcni-node-; empty: no pod is known to be the agent's.
	AgentPrefix string
	// AddDeadline bounds one ADD of the plugin. Default 30s.
	AddDeadline time.Duration
	// UncapturedFamily is what the plugin does with an address family of a pod that the mesh does not capture: allow or
	// drop. Default allow.
	UncapturedFamily redirect.UncapturedFamily
	// RefuseProxyUID has the plugin refuse a pod with a container that the rules may take for the proxy. Default false.
	RefuseProxyUID bool
	// WriteStatus has the plugin say on the pod that its rules are in place, where the mesh has an annotation for it; the
	// account needs the right to patch pods/status. Default false.
	WriteStatus bool
	// ReadyWithoutAgent has the plugin tell the runtime, which asks by STATUS of CNI 1.1, that it is ready before an agent
	// has run. For an agent whose own pod needs the node's network: the runtime would else keep it, and every pod,
	// waiting for it. Pods of the mesh wait either way. Default false.
	ReadyWithoutAgent bool
	// PluginConfig replaces the rendered entry: a JSON object with a "type"; see [Config.Entry]. Default none.
	PluginConfig string
}

// PluginName is the plugin's file name, and its "type" unless PluginConfig says another.
const PluginName = "meshcni"

// Default is a node as the published manifests set it up.
func Default() Config {
	return Config{
		BinSourceDir: "/opt/meshcni/bin", CNIBinDirs: []string{"/host/opt/cni/bin"}, CNIConfDir: "/host/etc/cni/net.d",
		CNICacheDir: "/host/var/lib/cni", Chained: true, RunDir: "/var/run/meshcni",
		ServiceAccountDir: "/var/run/secrets/kubernetes.io/serviceaccount", KubernetesPort: "443", KubernetesProtocol: "https",
		Dialect: "istio", Backend: "auto", LogLevel: "info", PodNamespace: "meshcni-system", AgentPrefix: "meshcni-node-", AddDeadline: 30 * time.Second,
		UncapturedFamily: redirect.UncapturedAllow,
	}
}

// Validate reports every bad field at once (errors.Join).
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad("%s %q: must be one of %s", key, value, strings.Join(allowed, ", "))
		}
	}
	for key, value := range map[string]string{
		"bin-source-dir": c.BinSourceDir, "cni-conf-dir": c.CNIConfDir, "cni-cache-dir": c.CNICacheDir,
		"run-dir": c.RunDir, "service-account-dir": c.ServiceAccountDir,
	} {
		if !filepath.IsAbs(value) {
			bad("%s %q: must be an absolute path", key, value)
		}
	}
	if len(c.CNIBinDirs) == 0 {
		bad("cni-bin-dir: must name at least one directory")
	}
	for _, dir := range c.CNIBinDirs {
		if !filepath.IsAbs(dir) {
			bad("cni-bin-dir %q: must be an absolute path", dir)
		}
	}
	if name := c.CNIConfName; name != "" {
		ext := filepath.Ext(name)
		if name != filepath.Base(name) || !slices.Contains([]string{".conf", ".conflist", ".json"}, ext) {
			bad("cni-conf-name %q: must be a file's name ending in .conf, .conflist or .json", name)
		} else if c.OwnFile && ext != ".conflist" {
			bad("cni-conf-name %q: a list of our own must end in .conflist", name)
		} else if !c.Chained && ext == ".conflist" {
			bad("cni-conf-name %q: a configuration of the plugin alone must end in .conf or .json", name)
		}
	}
	if c.OwnFile && !c.Chained {
		bad("own-file needs chained")
	}
	oneOf("dialect", c.Dialect, "istio", "linkerd", "kuma", "consul")
	oneOf("backend", c.Backend, "auto", "iptables", "iptables-nft", "iptables-legacy", "nftables")
	oneOf("log-level", c.LogLevel, "debug", "info", "warn", "error")
	if _, err := redirect.ParseUncapturedFamily(string(c.UncapturedFamily)); err != nil {
		bad("uncaptured-family: %w", err)
	}
	oneOf("kubernetes-service-protocol", c.KubernetesProtocol, "http", "https")
	if c.AddDeadline <= 0 {
		bad("add-deadline %v: must be positive", c.AddDeadline)
	}
	if _, err := c.Entry(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hostPrefix is where the manifests mount directories of the host.
const hostPrefix = "/host/"

// onHost is a path as the host sees it.
func onHost(path string) string {
	if rest, ok := strings.CutPrefix(path, hostPrefix); ok {
		return "/" + rest
	}
	return path
}

func (c Config) kubeconfig() string { return filepath.Join(c.RunDir, "kubeconfig") }

// record has the types that the plugin has been installed as, other than the default.
func (c Config) record() string { return filepath.Join(c.RunDir, "types") }

// Server is the API server's URL, an IPv6 address bracketed.
func (c Config) Server() string {
	host := strings.TrimSuffix(strings.TrimPrefix(c.KubernetesHost, "["), "]")
	return c.KubernetesProtocol + "://" + net.JoinHostPort(host, c.KubernetesPort)
}

// ownName is the name of the file that is all ours, if there is one.
func (c Config) ownName() string {
	switch {
	case c.CNIConfName != "" && (c.OwnFile || !c.Chained):
		return c.CNIConfName
	case !c.Chained:
		return PluginName + ".conf"
	}
	return "00-" + PluginName + ".conflist"
}
