//go:build linux

package installer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
)

// Config describes the installation. Paths are as this process sees them. The plugin runs on the host, so its entry has those
// below "/host/" without that prefix. Start from [Default]: the zero value is not valid.
type Config struct {
	// Identity is the product's, of which the plugin and the agent are. The names of the agent's own pods, in the plugin's PodNamespace,
	// begin with its AgentPrefix: an uninstall does not wait for them to end.
	Identity meshcni.Identity
	// Plugin is the plugin's entry in the network configuration. Its Type is the binary's file name on the node; its paths
	// must be empty, because they follow from the fields below. Default: netconf's defaults, with dialect istio.
	Plugin netconf.Config
	// PluginConfig is a template to use as the entry instead; see [Config.Entry]. Default: none.
	PluginConfig string
	// BinSourceDir contains the binary to install. Default: /opt/meshcni/bin.
	BinSourceDir string
	// BinaryName is the binary's file name in BinSourceDir. Default: Plugin.Type.
	BinaryName string
	// CNIBinDirs are the runtime's binary directories. They must exist. Default: /host/opt/cni/bin.
	CNIBinDirs []string
	// CNIConfDir is the runtime's configuration directory. Default: /host/etc/cni/net.d.
	CNIConfDir string
	// CNICacheDir is libcni's cache. Default: /host/var/lib/cni.
	CNICacheDir string
	// Alone keeps the plugin off the node: an agent edits no configuration, puts no program into CNIBinDirs and writes no credentials, and takes
	// back what one has put there before. Something else captures the pods. Default: false.
	Alone bool
	// HookDir is the directory in which the container runtime looks for plugins of its own hook (NRI), which it starts at its own start. With Preinstall
	// "capture" or "gate" the agent puts the plugin there, with its settings; else it takes back what it has put there. Only
	// this module's own program works so. Default: none, and "off".
	HookDir, Preinstall string
	// CNIConfName names a file in CNIConfDir. Chained, it is the file to edit (.conf and .conflist stand for each other), by
	// default the one that the runtime loads. Otherwise it is our own file: by default 00-TYPE.conflist with OwnFile, and
	// TYPE.conf without Chained. With SwitchAuto it names the network's file only, and our own has the default name.
	CNIConfName string
	// Chained adds the entry to the node's network. If false, the file has the plugin alone, for Multus to delegate to.
	// Default: true.
	Chained bool
	// OwnFile keeps a list of our own, which sorts first and is derived from the runtime's, and leaves others' files alone. SwitchAuto chains
	// into the network's file, and keeps a list of our own once the entry was lost at a boot, or twice, however far apart. That outlives the
	// agent and a boot, until an uninstall or another value. None is taken while [Options].Hooked, nor where the network's list delegates,
	// as Multus' does. Without Chained it means SwitchOff. Default: SwitchAuto. The zero value means SwitchOff.
	OwnFile Switch
	// RunDir contains the kubeconfig and the log socket. It has the same path on the host. Default: /var/run/meshcni.
	RunDir string
	// KubeconfigName is the file name of the plugin's credentials in RunDir. Default: kubeconfig. Empty: the plugin asks no API server, so none
	// are written, its entry names none, and neither the service account nor the API server's address is needed.
	KubeconfigName string
	// ServiceAccountDir contains token and ca.crt. Default: /var/run/secrets/kubernetes.io/serviceaccount.
	ServiceAccountDir string
	// KubernetesHost, KubernetesPort and KubernetesProtocol are the API server's address. Default: port 443, protocol https.
	KubernetesHost, KubernetesPort, KubernetesProtocol string
	// MeshPlugins are the types of plugins of other meshes to warn about in the runtime's list, beside those that a
	// [Neighbour] is found by anyway. Default: none.
	MeshPlugins []string
}

// Default returns a product's configuration, for meshcni that of the published manifests.
func Default(id meshcni.Identity) Config {
	id = id.WithDefaults()
	return Config{
		Identity: id,
		Plugin: netconf.Config{
			Type: id.Plugin, Dialects: netconf.Dialects{netconf.DefaultDialect}, Backend: netconf.DefaultBackend, LogLevel: netconf.DefaultLogLevel,
			PodNamespace: id.Namespace, AddDeadline: netconf.DefaultAddDeadline, UncapturedFamily: redirect.UncapturedAllow,
		},
		BinSourceDir: "/opt/" + id.Name + "/bin", CNIBinDirs: []string{"/host" + netconf.DefaultCNIBinDir},
		CNIConfDir: "/host/etc/cni/net.d", CNICacheDir: "/host/var/lib/cni", Chained: true, OwnFile: SwitchAuto,
		RunDir: id.RunDir, KubeconfigName: netconf.KubeconfigName,
		ServiceAccountDir: "/var/run/secrets/kubernetes.io/serviceaccount",
		KubernetesPort:    "443", KubernetesProtocol: "https",
	}
}

// Validate returns an error for every invalid field, joined. It accepts any dialect, because a plugin may have its own.
func (c Config) Validate() error {
	errs := []error{c.Identity.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.CNIBinDirs) == 0 {
		bad("cni-bin-dir: must name at least one directory")
	}
	paths := [][2]string{
		{"bin-source-dir", c.BinSourceDir}, {"cni-conf-dir", c.CNIConfDir}, {"cni-cache-dir", c.CNICacheDir},
		{"run-dir", c.RunDir}, {"service-account-dir", c.ServiceAccountDir},
	}
	if c.HookDir != "" {
		paths = append(paths, [2]string{"nri-plugin-dir", c.HookDir})
	}
	if !slices.Contains([]string{"", "off", "gate", "capture"}, c.Preinstall) {
		bad("preinstall %q: not one of off, gate and capture", c.Preinstall)
	} else if c.preinstalls() && c.HookDir == "" {
		bad("preinstall=%s needs nri-plugin-dir", c.Preinstall)
	}
	for _, dir := range c.CNIBinDirs {
		paths = append(paths, [2]string{"cni-bin-dir", dir})
	}
	for _, p := range paths {
		if !filepath.IsAbs(p[1]) {
			bad("%s %q: must be an absolute path", p[0], p[1])
		}
	}
	for _, name := range []string{c.binaryName(), cmp.Or(c.KubeconfigName, netconf.KubeconfigName), c.Plugin.Type} {
		if !fileName.MatchString(name) {
			bad("%q: must be a file name (the binary's, the kubeconfig's and the plugin's type)", name)
		}
	}
	if c.Plugin.RunDir != "" || c.Plugin.Kubernetes.Kubeconfig != "" || c.Plugin.Kubernetes.CNIBinDir != "" {
		bad("the plugin's paths follow from RunDir, KubeconfigName and CNIBinDirs: leave run_dir, kubeconfig and cni_bin_dir empty")
	}
	if c.Plugin.Annotations != nil || c.Plugin.PrevResult != nil {
		bad("the plugin's Annotations and PrevResult come from the runtime: leave them nil")
	}
	if !c.Chained && (c.Plugin.CNIVersion != "" || c.Plugin.Name != "") {
		bad("without chained, cniVersion and name follow from the plugin's type: leave them empty")
	}
	if err := c.OwnFile.Validate(); err != nil {
		bad("own-file %w", err)
	}
	if c.OwnFile == SwitchOn && !c.Chained {
		bad("own-file needs chained")
	}
	errs = append(errs, c.validateConfName())
	if !slices.Contains([]string{"http", "https"}, c.KubernetesProtocol) {
		bad("kubernetes-service-protocol %q: must be one of http, https", c.KubernetesProtocol)
	}
	errs = append(errs, c.validateEntry())
	return errors.Join(errs...)
}

// leastDeadline is a bound within which a busy node still captures a pod: below it, pods of the mesh may never start.
const leastDeadline = netconf.Duration(time.Second)

// validateEntry returns what the plugin, which reads the same bytes, would refuse.
func (c Config) validateEntry() error {
	text, err := c.Entry()
	if err != nil {
		return err
	}
	e, _, err := netconf.Parse(text, c.Identity)
	if err == nil && e.AddDeadline < leastDeadline {
		err = fmt.Errorf("add-deadline %s: must be at least %s, or pods of the mesh may never start", e.AddDeadline, leastDeadline)
	}
	if err == nil && !c.Chained && !attachment.ValidName(e.Name) {
		err = fmt.Errorf("name %q: must be letters, digits, '_', '.' and '-'", e.Name)
	}
	if err != nil && c.PluginConfig != "" {
		err = fmt.Errorf("the plugin's configuration template: %w", err)
	}
	return err
}

func (c Config) validateConfName() error {
	name, ext := c.CNIConfName, filepath.Ext(c.CNIConfName)
	switch {
	case name == "":
		return nil
	case name != filepath.Base(name) || !slices.Contains([]string{".conf", ".conflist", ".json"}, ext):
		return fmt.Errorf("cni-conf-name %q: must be a file's name ending in .conf, .conflist or .json", name)
	case c.OwnFile == SwitchAuto && c.Chained && name == c.ownName():
		return fmt.Errorf("cni-conf-name %q: is the name of the list that own-file=auto may keep, and cannot be the network's", name)
	case c.OwnFile == SwitchOn && ext != ".conflist":
		return fmt.Errorf("cni-conf-name %q: a list of our own must end in .conflist", name)
	case !c.Chained && ext == ".conflist":
		return fmt.Errorf("cni-conf-name %q: a configuration of the plugin alone must end in .conf or .json", name)
	}
	return nil
}

// fileName matches a file's name. A runtime joins the plugin's type to its binary directory, so it must not lead elsewhere.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

func (c Config) preinstalls() bool { return c.Preinstall == "gate" || c.Preinstall == "capture" }

func (c Config) ownType() string    { return cmp.Or(c.Plugin.Type, c.Identity.WithDefaults().Plugin) }
func (c Config) binaryName() string { return cmp.Or(c.BinaryName, c.Plugin.Type) }
func (c Config) source() string     { return filepath.Join(c.BinSourceDir, c.binaryName()) }
func (c Config) kubeconfig() string {
	return filepath.Join(c.RunDir, cmp.Or(c.KubeconfigName, netconf.KubeconfigName))
}

// kubeconfigOnHost is that path for the plugin; empty: it gets no credentials.
func (c Config) kubeconfigOnHost() string {
	if c.KubeconfigName == "" {
		return ""
	}
	return hostpath.OnHost(c.kubeconfig())
}

// record is the file with the types, other than the default, under which the plugin has been installed.
func (c Config) record() string { return filepath.Join(c.RunDir, "types") }

// server returns the API server's URL, with an IPv6 address in brackets.
func (c Config) server() string {
	host := strings.TrimSuffix(strings.TrimPrefix(c.KubernetesHost, "["), "]")
	return c.KubernetesProtocol + "://" + net.JoinHostPort(host, c.KubernetesPort)
}

// ownName returns the name of the file that is entirely ours.
func (c Config) ownName() string {
	switch typ := c.ownType(); {
	case c.CNIConfName != "" && (c.OwnFile == SwitchOn || !c.Chained):
		return c.CNIConfName
	case !c.Chained:
		return typ + ".conf"
	default:
		return "00-" + typ + ".conflist"
	}
}
