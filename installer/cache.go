//go:build linux

package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// annotationsCapability asks a runtime for a pod's annotations. containerd and CRI-O both know it
// (github.com/containerd/containerd, internal/cri/annotations; github.com/cri-o/ocicni, pkg/ocicni/ocicni.go).
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// containerdNetns begins the names of the namespaces that containerd makes (pkg/netns/netns_linux.go). Those of a CRI-O
// that knows the capability are bare UUIDs (internal/config/nsmgr).
const containerdNetns = "cni-"

// Ours is what to look for in a cache.
type Ours struct {
	// Types are the plugin's.
	Types []string
	// Kubeconfig is its path on the host.
	Kubeconfig string
	// AgentNamespace and AgentPrefix tell the agent's own pods.
	AgentNamespace, AgentPrefix string
}

// Cached is what a cache has of ours. Each attachment is named network/container/interface.
type Cached struct {
	// Made are the attachments whose list contains a plugin of one of the types: each may have its DEL called with that very
	// list, whatever the configuration directory says by then.
	Made []string
	// Naming says of each other attachment that its list has our kubeconfig.
	Naming []string
}

// Attachments reads libcni's cache: the directory whose "results" fsys is, or "cache/results" where the runtime is
// cri-dockerd. A missing cache has none.
//
// Those of the agent's own pod are left out where containerd certainly made them. They would else keep the binary on the
// node for ever, since they last longer than the agent that uninstalls; and containerd, other than CRI-O, calls DEL with the
// list that is in the configuration directory, in which the plugin no longer is. When it is unsure which runtime it was,
// they count.
func Attachments(fsys fs.FS, ours Ours) (Cached, error) {
	var all Cached
	for _, dir := range []string{"results", "cache/results"} {
		if err := all.read(fsys, dir, ours); err != nil {
			return Cached{}, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
		}
	}
	return all, nil
}

func (c *Cached) read(fsys fs.FS, dir string, ours Ours) error {
	entries, err := fs.ReadDir(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		name := dir + "/" + e.Name()
		info, err := fs.Stat(fsys, name) // before opening, which would wait for the other end of a pipe
		if err == nil && info.IsDir() {
			continue
		}
		if err == nil && !info.Mode().IsRegular() {
			err = &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
		}
		var data []byte
		if err == nil {
			data, err = fs.ReadFile(fsys, name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // its DEL came just now
		}
		if err != nil {
			return err
		}
		var cached attachment
		if err := json.Unmarshal(data, &cached); err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) {
			continue // libcni could not use it either; but what has another form than here, it may
		}
		found := mentions(cached.Config, ours.Types, ours.Kubeconfig)
		name = cached.NetworkName + "/" + cached.ContainerID + "/" + cached.IfName
		switch {
		case len(found) == 0 || cached.agents(ours):
		case slices.ContainsFunc(found, func(m mention) bool { return m.plugin || m.broken }):
			c.Made = append(c.Made, name)
		default:
			c.Naming = append(c.Naming, "the list of the attachment "+name+" "+found[0].String())
		}
	}
	return nil
}

// attachment is what libcni keeps of one (libcni/api.go, cachedInfo).
type attachment struct {
	Config                           []byte
	NetworkName, ContainerID, IfName string
	NetNS                            string // of libcni 1.2 and newer
	CniArgs                          [][2]string
	CapabilityArgs                   map[string]json.RawMessage
	Result                           struct{ Interfaces []struct{ Sandbox string } }
}

// agents reports whether containerd attached a pod of the agent's, by the same rule by which the plugin lets those through.
func (a attachment) agents(ours Ours) bool {
	args := map[string]string{}
	for _, pair := range a.CniArgs {
		args[pair[0]] = pair[1]
	}
	return a.containerds() && ours.AgentPrefix != "" &&
		args["K8S_POD_NAMESPACE"] == ours.AgentNamespace && strings.HasPrefix(args["K8S_POD_NAME"], ours.AgentPrefix)
}

// containerds reports whether it was certainly containerd: the one runtime that both hands over annotations and names its
// namespaces so.
func (a attachment) containerds() bool {
	if _, ok := a.CapabilityArgs[annotationsCapability]; !ok {
		return false
	}
	netns := []string{a.NetNS}
	for _, i := range a.Result.Interfaces {
		netns = append(netns, i.Sandbox)
	}
	netns = slices.DeleteFunc(netns, func(s string) bool { return s == "" })
	return len(netns) > 0 && !slices.ContainsFunc(netns, func(s string) bool {
		return !strings.HasPrefix(path.Base(s), containerdNetns)
	})
}
