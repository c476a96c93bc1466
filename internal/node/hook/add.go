package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/nri"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// by is the writer of the hook's records.
const by = "nri"

// add runs the plugin's ADD for the pod, and returns whether a mesh has it. The error has the plugin's words for people.
func (h *Hook) add(ctx context.Context, p nri.Pod) (selected bool, err error) {
	switch {
	case p.NetNS == "":
		return false, errors.New("the container runtime does not say which network namespace is the pod's")
	case !attachment.ValidName(p.Namespace) || !attachment.ValidName(p.Name) || p.UID != "" && !attachment.ValidName(p.UID):
		return false, fmt.Errorf("the container runtime's names of the pod, %q, %q and UID %q, are no names of objects", p.Namespace, p.Name, p.UID)
	}
	c := h.o.Config()
	c.CNIVersion, c.Name, c.AddDeadline = "1.0.0", h.network(), netconf.Duration(h.attempt)
	if c.Agent == netconf.AgentOff { // that is about other processes
		c.Agent = netconf.AgentPrefer
	}
	stdin, err := request(c, p)
	if err != nil {
		return false, err
	}
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": p.ID, "CNI_NETNS": p.NetNS, "CNI_IFNAME": ifName,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + p.Namespace + ";K8S_POD_NAME=" + p.Name + ";K8S_POD_UID=" + p.UID,
	}
	asked := h.o.Plugin
	var done plugin.Event
	asked.OnEvent = func(_ context.Context, e plugin.Event) { done = e }
	asked.OpenLog = func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) { return h.o.Log.With("by", by), nil }
	here := agent{Hook: h}
	asked.Attachments = func(netconf.Config) attachment.Store { return h.o.Inventory.As(by) }
	asked.OpenNetNS = func(path string) (plugin.NetNS, error) {
		id, seen, _ := netnsOf(path) // to hold a pod takes no namespace
		if h.o.Mode != Capture {
			return gate{id}, nil
		}
		return plugin.OpenNetNS(seen)
	}
	if h.o.Mode != Capture {
		here.gates = errGate
	}
	if h.o.Pod != nil {
		asked.OpenAgent = func(netconf.Config) plugin.Agent { return here }
	} else if here.gates != nil { // the agent would capture its proxy's pods
		asked.OpenAgent = func(c netconf.Config) plugin.Agent {
			return gated{agentsock.Client{Path: filepath.Join(c.RunDir, agentsock.Name)}}
		}
	}
	code := asked.Run(ctx, plugin.IO{Args: []string{asked.Identity.WithDefaults().Plugin}, Getenv: func(key string) string { return env[key] }, Stdin: bytes.NewReader(stdin)})
	switch {
	case done.Err != nil && done.Err.Details != "":
		return false, fmt.Errorf("%s; %s", done.Err.Msg, done.Err.Details)
	case done.Err != nil:
		return false, errors.New(done.Err.Msg)
	case code != 0:
		return false, errors.New("the plugin's ADD failed in the agent, whose log says why")
	}
	return done.Decision.Selected, nil
}

// request holds the runtime's input to an ADD of the pod, as it would be on the plugin's stdin.
func request(c netconf.Config, p nri.Pod) ([]byte, error) {
	text, err := json.Marshal(c)
	all := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	result := map[string]any{"cniVersion": c.CNIVersion, "interfaces": []any{map[string]any{"name": ifName, "sandbox": p.NetNS}}}
	if len(p.Addrs) > 0 {
		result["ips"] = prefixed(p.Addrs)
	}
	all["prevResult"] = result
	if p.Annotations != nil { // none at all may mean that they are not said
		all["runtimeConfig"] = map[string]any{netconf.AnnotationsCapability: p.Annotations}
	}
	if err == nil {
		text, err = json.Marshal(all)
	}
	return text, err
}

// hostRoot shows the host's mounts to a process that shares the host's processes; to another it shows its own.
const hostRoot = "/proc/1/root"

// onHost returns a path of the host as this process sees it there.
func onHost(path string) string {
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok { // a link, which would lead out of the root
		path = "/run/" + rest
	}
	return filepath.Join(hostRoot, path)
}

// netnsOf identifies the namespace at a path of the host, without the right to enter it. Seen is the path in this process: the same where the
// directory is mounted.
func netnsOf(path string) (id netnsexec.ID, seen string, err error) {
	seen = path
	info, err := os.Stat(seen)
	if err != nil {
		seen = onHost(path)
		if info, _ = os.Stat(seen); info == nil {
			return id, path, err
		}
	}
	is, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return id, path, errors.New("it is no file of a network namespace")
	}
	return netnsexec.ID{Dev: is.Dev, Ino: is.Ino}, seen, nil
}

// errGate is the failure of a pod that has no rules, where nobody here may set them up.
var errGate = errors.New("the network's plugins have not set up its redirection, and this agent's runtime hook, in mode \"gate\", has no right to; the pod starts once they have: " +
	"the node's agent says at /readyz why they do not")

// gated is the node's agent, of which nothing is asked but pods.
type gated struct{ agentsock.Client }

func (gated) Attach(context.Context, agentsock.Attachment, syscall.Conn) (agentsock.Attached, error) {
	return agentsock.Attached{}, errGate
}

// gate is a namespace into which nobody here may go.
type gate struct{ id netnsexec.ID }

func (g gate) Backend(context.Context, ruleset.Backend) (plugin.Backend, error) { return g, nil }
func (g gate) ID() netnsexec.ID                                                 { return g.id }
func (gate) Kernel() (redirect.Kernel, error)                                   { return redirect.Kernel{}, nil }
func (gate) Addrs(string) ([]netip.Addr, error)                                 { return nil, nil }
func (gate) Bypasses([]netip.Addr) ([]dialect.Bypass, error)                    { return nil, nil }
func (gate) Close() error                                                       { return nil }
func (gate) SyscallConn() (syscall.RawConn, error)                              { return nil, errGate }
func (gate) Name() ruleset.Backend                                              { return "" }

func (gate) Apply(context.Context, ruleset.Ruleset) (apply.Result, error) {
	return apply.Result{}, errGate
}

func (gate) Check(context.Context, ruleset.Ruleset) ([]ruleset.Difference, error) {
	return nil, errGate
}
