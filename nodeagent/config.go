//go:build linux

package nodeagent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/repair"
)

// Config holds an agent's settings. Start from [DefaultConfig]: the zero value is not valid. Its errors name settings as
// meshcni-node's flags do.
type Config struct {
	// Config describes the plugin and its installation. What the agent does beside that goes by the plugin's settings too.
	installer.Config
	// InstalledElsewhere leaves the installation to another program: the agent does all else, at once.
	InstalledElsewhere bool
	// Node is the name of this node. Without it, the agent only installs the plugin.
	Node string
	// HostRoot is the root directory of the host, whose iptables is run: /proc/1/root in a container that shares the host's
	// processes. Empty: our own. ProcRoot is the proc file system in which the pods' processes are seen. Default: /proc.
	HostRoot, ProcRoot string

	// Repair says what to do about pods that started without their rules. The agent sets what follows from the other settings: the
	// node, the dialects, the policies of Criteria, the plan, the records, where Detect looks, and so on. Without an Action, a
	// VerifyInterval and Detect, nobody looks for such pods.
	Repair repair.Options
	// AutoEvict makes the agent evict pods that lost the plugin, and pods whose own check says that they have no rules, while the API
	// server is proven to confine the agent's token to the node. Repair.Action is then [repair.ActionNone].
	AutoEvict bool
	// Ambient is about pods whose mesh has its proxy on the node.
	Ambient Ambient
	// RuntimeHook is what is done at the container runtime's own hook (NRI) about a pod of the mesh that the plugin has not captured: "capture"
	// captures it before its first container, for which the agent needs the capabilities SYS_ADMIN and NET_ADMIN, and sees /var/run/netns or the host's
	// processes; "gate" refuses its containers; "auto" is one of the two, by the agent's capabilities, where NRISocket is there; "off" is neither.
	// NRISocket is the runtime's socket. Default: "auto", and /var/run/nri/nri.sock.
	RuntimeHook hook.Mode
	NRISocket   string

	// MetricsAddress and HealthAddress are the addresses to listen on. Default: ":15014" and ":8000". Empty: no server; see
	// [Agent.ServeHTTP].
	MetricsAddress, HealthAddress string
	// StartSocket is the path of a socket at which the agent says whether it has begun its work on the node, to [AwaitStarted] in
	// the same container; the agents of a node's two pods, in an update, may share the addresses above. Default: none.
	StartSocket string
	// UninstallOnExit lets the end of Run uninstall the plugin. Off: it stays on the node, and captures new pods, or makes them wait once its
	// token is worthless. Auto: it is uninstalled if the agent has seen the deletion of its DaemonSet or namespace, or sees that the DaemonSet
	// does not want the node any more; not when the pod is replaced or restarted, and when the reason is unknown. Default: off.
	UninstallOnExit installer.Switch
	// DaemonSetName is the agent's DaemonSet in the namespace Plugin.PodNamespace, which installer.SwitchAuto watches. Default: the identity's Agent.
	DaemonSetName string
	// PluginServiceAccount is the service account in the namespace Plugin.PodNamespace whose token the plugin gets; the agent must be
	// allowed to create tokens of it (create on serviceaccounts/token). It needs Node. Default: the identity's PluginAccount. Empty: the plugin
	// gets the agent's own token.
	PluginServiceAccount string
	// TokenLifetime is the validity of such a token: 10 minutes to 24 hours. It is renewed before half of that has passed.
	// Default: 4 hours.
	TokenLifetime netconf.Duration
}

// DefaultConfig returns a product's settings, for meshcni those of the published manifests: the plugin is installed, and pods that started without it are
// looked for and told of.
func DefaultConfig(id meshcni.Identity) Config {
	id = id.WithDefaults()
	return Config{
		Config: installer.Default(id), MetricsAddress: ":15014", HealthAddress: ":8000", UninstallOnExit: installer.SwitchOff, DaemonSetName: id.Agent,
		PluginServiceAccount: id.PluginAccount, TokenLifetime: netconf.Duration(4 * time.Hour), ProcRoot: "/proc",
		RuntimeHook: hook.Auto, NRISocket: "/var/run/nri/nri.sock",
		Repair: repair.Options{Action: repair.ActionNone, Detect: &repair.Detection{Act: true}},
		Ambient: Ambient{
			ZDSSocket: "/var/run/ztunnel/ztunnel.sock", VerifyInterval: netconf.Duration(nodecontrol.DefaultVerifyInterval), DrainTimeout: nodecontrol.DefaultDrainTimeout,
			DrainMinimum: nodecontrol.DefaultDrainMinimum,
		},
	}
}

// Ambient holds the settings about pods whose mesh has its proxy on the node.
type Ambient struct {
	// Enabled makes the agent hand such pods to the node's proxy, see to it that they stay there, and take them back.
	// Default: false; then no dialect of that kind can be chosen.
	Enabled bool
	// ZDSSocket is the socket on which Istio's ztunnel, or another proxy that speaks its protocol, asks for pods. Default:
	// /var/run/ztunnel/ztunnel.sock, which is ztunnel's own. It is not used with [Options].Proxy.
	ZDSSocket string
	// VerifyInterval is the time between two looks at each such pod on the node: its rules, its proxy's listeners, its annotation
	// and its exemption of probes. Default: 30 seconds.
	VerifyInterval netconf.Duration
	// DrainTimeout bounds how long a running pod that leaves the mesh stays with the proxy, which cuts the pod's connections when it is
	// told to let go: until it has carried nothing for 3 seconds. Default: 12 seconds. 0: it is told at once.
	DrainTimeout time.Duration
	// DrainMinimum is the time that it stays with the proxy at least, unless DrainTimeout is less: the control plane takes it to tell peers that
	// a pod has left. Default: 2 seconds. 0 is no default.
	DrainMinimum time.Duration
	// ReadyNeedsProxy makes the agent ready only while a proxy is connected, for what keeps pods off the node until then: the
	// taint's controller, meshcni-taint. Default: false, so that agents can be installed, and waited for, before the proxy is.
	ReadyNeedsProxy bool
}

// maxSocketPath is the longest path of a socket: sun_path of unix(7) less its final zero.
const maxSocketPath = 107

// validate returns the faults, for an agent on the node of that name.
func (a Ambient) validate(node string) error {
	if !a.Enabled {
		return nil
	}
	var errs []error
	if node == "" {
		errs = append(errs, errors.New("ambient: node-name (NODE_NAME) is not set, so the agent does not know its pods"))
	}
	if !filepath.IsAbs(a.ZDSSocket) || len(a.ZDSSocket) > maxSocketPath {
		errs = append(errs, fmt.Errorf("zds-socket %q: must be an absolute path of at most %d bytes", a.ZDSSocket, maxSocketPath))
	}
	if a.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("ambient-drain-timeout %s: must not be negative", a.DrainTimeout))
	}
	if a.DrainMinimum <= 0 {
		errs = append(errs, fmt.Errorf("ambient-drain-minimum %s: must be more than 0; ambient-drain-timeout=0 lets go at once", a.DrainMinimum))
	}
	return errors.Join(errs...)
}

// drainTimeout is the same for a controller, where zero is its default.
func (a Ambient) drainTimeout() time.Duration {
	if a.DrainTimeout == 0 {
		return -1
	}
	return a.DrainTimeout
}

// acts reports whether repair does more than to look for pods.
func (c Config) acts() bool {
	return c.Repair.Action != "" && c.Repair.Action != repair.ActionNone || c.Repair.VerifyInterval > 0
}

// entry returns the plugin's configuration as it will be on the node, as far as the plugin could read it: a template may say otherwise
// than Plugin. [installer.Config.Validate] says what the plugin would refuse.
func (c Config) entry() netconf.Config {
	if c.PluginConfig == "" {
		return c.Plugin
	}
	text, err := c.Entry()
	if err != nil {
		return c.Plugin
	}
	p, _, _ := netconf.Parse(text, c.Identity)
	return p
}

// Effective returns the plugin's configuration as far as the agent decides on pods by it, as it will be on the node: a template may
// say otherwise than Plugin.
func (c Config) Effective() netconf.Config {
	p := c.entry()
	return netconf.Config{
		Type: p.Type, Dialects: p.Dialects, Backend: p.Backend, UncapturedFamily: p.UncapturedFamily, RefuseProxyUID: p.RefuseProxyUID, RefuseNetRaw: p.RefuseNetRaw,
		AllowSandboxed: p.AllowSandboxed, SandboxedClasses: p.SandboxedClasses,
		PodNamespace: p.PodNamespace, RunDir: c.RunDir, Meshes: p.Meshes, Kubernetes: netconf.Kubernetes{
			ExcludeNamespaces: p.Kubernetes.ExcludeNamespaces, ExcludeNamespaceSelector: p.Kubernetes.ExcludeNamespaceSelector,
		},
	}
}

// Validate returns an error for every invalid setting of an agent that knows these dialects, joined. Settings of Repair that serve
// detection alone are not among them, since what is wrong with that is no reason not to capture pods. Nil dialects are the built-in ones.
func (c Config) Validate(known []dialect.Dialect) error {
	known = builtIn(known)
	return c.validate(dialect.Validate(known) == nil, known)
}

func (c Config) validate(work bool, known []dialect.Dialect) error {
	errs := []error{c.Config.Validate(), validateLifetime(c.TokenLifetime), c.Ambient.validate(c.Node)}
	if work { // an agent of dialects that cannot work is never ready, and says why
		_, err := dialect.Configure(known, c.Effective())
		if err != nil && c.PluginConfig != "" {
			err = fmt.Errorf("the plugin's configuration template: %w", err)
		}
		errs = append(errs, dialect.ByFlag(err, byFlag))
	}
	entry := c.entry()
	if err := c.validateDialects(known); err != nil {
		errs = append(errs, fmt.Errorf("dialect: %w", err))
	}
	if _, err := repair.ParseAction(string(c.Repair.Action)); err != nil {
		errs = append(errs, fmt.Errorf("repair: %w", err))
	}
	for _, needs := range []struct {
		set  bool
		what string
	}{
		{c.acts(), "repair"}, {c.AutoEvict, "repair=auto"}, {entry.Agent == netconf.AgentRequire, "agent=require"},
	} {
		if needs.set && c.Node == "" {
			errs = append(errs, errors.New(needs.what+" needs node-name"))
		}
	}
	if err := new(hook.Mode).UnmarshalText([]byte(c.RuntimeHook)); err != nil {
		errs = append(errs, fmt.Errorf("runtime-hook %w", err))
	}
	if c.RuntimeHook != hook.Off && (!filepath.IsAbs(c.NRISocket) || len(c.NRISocket) > maxSocketPath) {
		errs = append(errs, fmt.Errorf("nri-socket %q: must be an absolute path of at most %d bytes", c.NRISocket, maxSocketPath))
	}
	if c.Alone && (c.RuntimeHook == hook.Off || c.RuntimeHook == hook.Gate) {
		errs = append(errs, fmt.Errorf("alone needs runtime-hook=capture or auto: with %q nothing captures pods", c.RuntimeHook))
	}
	if c.Alone && (c.Node == "" || entry.Agent == netconf.AgentOff || c.InstalledElsewhere) {
		errs = append(errs, errors.New("alone needs node-name, and an agent that knows its pods: agent=off does not go with it"))
	}
	if c.HostRoot != "" && !filepath.IsAbs(c.HostRoot) {
		errs = append(errs, fmt.Errorf("repair-host-root %q: not an absolute path", c.HostRoot))
	}
	if c.Ambient.Enabled && entry.Agent == netconf.AgentOff {
		errs = append(errs, errors.New("agent=off does not go with ambient, whose pods only the node's agent can capture"))
	}
	errs = append(errs, c.meets(entry))
	if c.UninstallOnExit == installer.SwitchAuto && (c.DaemonSetName == "" || c.Plugin.PodNamespace == "") {
		errs = append(errs, errors.New("uninstall-on-exit=auto needs daemonset-name and pod-namespace"))
	}
	return errors.Join(errs...)
}

// meets returns an error if the plugin would look elsewhere than the agent is, or for what the agent does not write.
func (c Config) meets(entry netconf.Config) error {
	if c.PluginConfig == "" {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("the plugin's configuration template: "+format, args...))
	}
	kubeconfig := hostpath.OnHost(filepath.Join(c.RunDir, c.KubeconfigName))
	switch needed := entry.Agent == netconf.AgentRequire || c.Ambient.Enabled; {
	case needed && filepath.Clean(entry.RunDir) != hostpath.OnHost(c.RunDir):
		bad("run_dir: %q: the plugin needs this agent, whose run-dir is %q", entry.RunDir, c.RunDir)
	case entry.Agent != netconf.AgentRequire && filepath.Clean(entry.Kubernetes.Kubeconfig) != kubeconfig:
		bad("kubernetes.kubeconfig: %q: the agent writes %q, for which the template has __KUBECONFIG_FILEPATH__", entry.Kubernetes.Kubeconfig, kubeconfig)
	}
	return errors.Join(errs...)
}

// validateDialects returns an error for each dialect that this agent does not serve.
func (c Config) validateDialects(known []dialect.Dialect) error {
	var errs []error
	names := dialect.SetOf(known...).Names()
	unknown := slices.ContainsFunc(c.Plugin.Dialects, func(name string) bool { return !slices.Contains(names, name) })
	installed, served := c.Effective().Dialects, false // a template may name others
	for _, name := range installed {
		if !onNode(known, name) {
			continue
		}
		served = true
		if !c.Ambient.Enabled {
			errs = append(errs, fmt.Errorf("%q: its pods need an agent that hands their network namespaces to the node's proxy: set ambient", name))
		}
	}
	if c.Ambient.Enabled && !served && !unknown {
		errs = append(errs, fmt.Errorf("ambient is set, and none of %s has its proxy on the node: name one that has, as %s does", installed, WithNodeProxies(known)))
	}
	return errors.Join(errs...)
}

// onNode reports whether the name is that of a mesh whose proxy is on the node.
func onNode(known []dialect.Dialect, name string) bool {
	return slices.ContainsFunc(known, func(d dialect.Dialect) bool { return d.Name == name && d.NodeProxy != nil })
}

// WithNodeProxies names the meshes whose proxy is on the node, and then the first of all: what an agent with Ambient serves unless told
// otherwise. The former say by labels which pods are theirs, and leave those with a sidecar alone.
func WithNodeProxies(known []dialect.Dialect) (names netconf.Dialects) {
	for _, d := range known {
		if d.NodeProxy != nil {
			names = append(names, d.Name)
		}
	}
	if first := known[0].Name; !slices.Contains(names, first) {
		names = append(names, first)
	}
	return names
}

// keeps refuses changes of settings that are only read at the start.
func (c Config) keeps(next Config) error {
	fixed := func(c Config) [22]string {
		return [...]string{
			string(c.Repair.Action), strconv.FormatBool(c.AutoEvict), strconv.FormatBool(c.Repair.Detect != nil), c.Node, c.MetricsAddress, c.HealthAddress,
			string(c.UninstallOnExit), c.DaemonSetName, c.PluginServiceAccount, c.TokenLifetime.String(), string(c.entry().Agent),
			strconv.FormatBool(c.Ambient.Enabled), c.Ambient.ZDSSocket, c.Ambient.VerifyInterval.String(), strconv.FormatBool(c.Ambient.ReadyNeedsProxy),
			c.Ambient.DrainTimeout.String(), c.Ambient.DrainMinimum.String(), c.StartSocket, c.CNICacheDir, strconv.FormatBool(c.InstalledElsewhere),
			string(c.RuntimeHook), c.NRISocket,
		}
	}
	if fixed(next) != fixed(c) {
		return errors.New("repair, detect, node-name, metrics-address, health-address, uninstall-on-exit, daemonset-name, " +
			"plugin-service-account, token-lifetime, agent, ambient, zds-socket, ambient-verify-interval, ambient-drain-timeout, ambient-drain-minimum, ready-needs-proxy, " +
			"start-socket, runtime-hook, nri-socket and cni-cache-dir need a restart of the agent")
	}
	return c.Config.Keeps(next.Config)
}
