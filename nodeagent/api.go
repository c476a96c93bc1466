//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/diagnosis/bundle"
	"github.com/meshcni/meshcni/internal/files/confdir"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// nodeAPI answers who asks on the loopback interface.
type nodeAPI struct {
	options  Options
	settings func() Config
	auto     bool // see Config.AutoEvict
	status   func() Status
	pods     func() ([]*corev1.Pod, error)
	podByUID func(uid string) *corev1.Pod
	binDirs  func() []installer.BinDir
	ownToken func() bool
	kernel   *tried
	hook     *runtimeHook
	looks    *recent.Values[agentapi.Pod]
}

func (n nodeAPI) server() agentapi.Server {
	return agentapi.Server{Node: func() any { return n.node() }, Pod: n.pod}
}

// node returns what "meshcni-node status" prints, and the agent's own description.
func (n nodeAPI) node() agentapi.Node {
	s, now := n.settings(), n.status()
	node := agentapi.Node{Time: now.Time, Node: now.Node, Ready: now.Ready, News: now.News, Pods: now.Pods}
	plugin := s.Effective()
	short, _, _ := strings.Cut(n.options.version(), " ")
	node.About = agentapi.About{Version: short, Dialects: plugin.Dialects, Backend: string(plugin.Backend), Repair: n.mode(s), RuntimeHook: string(n.hook.mode()), Installed: n.installed(s), Kernel: kernelRelease()}
	node.Places, node.BinDirs = s.places(), n.lookAtBinDirs(node.Installed.Plugins)
	if asked, err := n.options.permissions(s, n.ownToken()); err == nil { // with settings that are refused the agent does not run
		node.Rights = asked
	}
	if used := n.kernel.used(context.Background()); used != ruleset.Backend(plugin.Backend) {
		node.BackendUsed = string(used)
	}
	if err := n.kernel.why(); err != nil {
		node.BackendError = err.Error()
	}
	if pods, err := n.pods(); err == nil {
		total, starting := networked(pods, node.Pods)
		node.PodsTotal, node.PodsStarting = &total, starting
	}
	return node
}

// mode returns what the agent does about pods without their rules, by its own choice or not.
func (n nodeAPI) mode(s Config) string {
	if n.auto {
		return fmt.Sprintf("%s (%s)", s.Repair.Action, AutoAction)
	}
	return string(s.Repair.Action)
}

// networked counts the pods that have a network of their own, and those beside the known ones that are to have one.
func networked(pods []*corev1.Pod, known []status.Pod) (total, starting int) {
	for _, p := range pods {
		switch {
		case p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case p.Status.PodIP != "" || len(p.Status.PodIPs) > 0 || p.Status.Phase != corev1.PodPending && p.Status.Phase != "":
			total++
		case slices.ContainsFunc(known, func(s status.Pod) bool { return podid.Is(p, s.Namespace, s.Name, s.UID) }):
			total++
		case p.DeletionTimestamp == nil:
			starting++
		}
	}
	return total, starting
}

// installed is the plugin's entry that is in force.
func (n nodeAPI) installed(s Config) (i agentapi.Installed) {
	if s.Alone {
		return agentapi.Installed{Alone: true, Config: s.Effective().Marshal()}
	}
	types := []string{s.Effective().Type, s.Plugin.Type}
	record, unread := bundle.Read(filepath.Join(s.RunDir, "types"))
	if errors.Is(unread, fs.ErrNotExist) {
		unread = nil
	}
	e, err := confdir.Entry(s.CNIConfDir, s.Identity, append(types, strings.Fields(string(record))...))
	var none *netconf.NoEntryError
	switch {
	case errors.As(err, &none) && unread != nil && !none.NoDir:
		i.Error, i.Unread = fmt.Sprintf("%v, and whether it has another type is unknown: %v", none, unread), true
	case err != nil:
		i.Error, i.Unread = err.Error(), none == nil && e.Network == nil
	default:
		meshes, err := dialect.Configure(n.options.Dialects, e.Config)
		i.Unknown = meshes.Unknown(e.Unknown)
		if err != nil {
			i.Error = fmt.Sprintf("%s, with which no pod starts: %v", e.File, err)
			break
		}
		i.Config = e.Marshal()
	}
	if e.Network == nil {
		return i
	}
	i.File, i.Loaded, i.CNIVersion = e.File, e.Loaded, e.Network.CNIVersion()
	for _, p := range e.Network.Plugins() {
		i.Plugins = append(i.Plugins, p.Type)
	}
	return i
}

// pod tells all who ask for a second what one look at a pod of the node saw: any process of the node may ask.
func (n nodeAPI) pod(ctx context.Context, uid string) agentapi.Pod {
	return n.looks.Get(uid, func() agentapi.Pod {
		ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), lookTime, errLookTime) // others wait for it too
		defer stop()
		return n.look(ctx, uid)
	})
}

func (n nodeAPI) look(ctx context.Context, uid string) agentapi.Pod {
	s := n.settings()
	p := recorded(n.options.inventory(s), uid)
	for _, state := range n.status().Pods {
		if state.UID == uid {
			p.State = &state
		}
	}
	if err := n.hosts(uid, p); err != nil { // else any process of the node could be looked for
		p.LiveError = err.Error()
		return p
	}
	w := wanted(n.podByUID(uid))
	enter(ctx, n.options.inventory(s), n.options.Dialects, &p, uid, netnsstore.Pod{Addrs: w.Addrs, OwnUsers: w.OwnUsers}, s.HostRoot)
	return p
}

// hosts returns nil if the pod is known to be the node's.
func (n nodeAPI) hosts(uid string, p agentapi.Pod) error {
	if p.State != nil || len(p.Records) > 0 {
		return nil
	}
	if _, err := n.pods(); err != nil {
		return err
	}
	if pod := n.podByUID(uid); pod == nil || pod.Spec.HostNetwork {
		return errors.New("the agent does not know the pod")
	}
	return nil
}

// kernelRelease is that of uname(2), or empty.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
