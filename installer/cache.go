//go:build linux

package installer

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// containerdNetns is the prefix of containerd's network namespaces (pkg/netns/netns_linux.go). Those of a CRI-O with that
// capability are bare UUIDs (internal/config/nsmgr).
const containerdNetns = "cni-"

// ours identifies our entries in a cache.
type ours struct {
	types                       []string // the plugin's
	kubeconfig                  string   // its path on the host
	agentNamespace, agentPrefix string   // of the agent's own pods
}

// readCache reads libcni's cache. A missing cache is empty.
// It names attachments network/container/interface.
//
// made are the attachments whose conflist has a plugin of one of the types: the runtime may call its DEL with that conflist,
// whatever the configuration directory contains by then. naming describes others whose conflist has our kubeconfig.
//
// The agent's own pods do not count if containerd attached them. They outlive the agent that uninstalls, and would keep the
// binary for ever. containerd calls their DEL with the conflist of the configuration directory, from which the plugin is gone;
// CRI-O uses the cached one. If the runtime is uncertain, they count.
func readCache(fsys fs.FS, ours ours) (made, naming []string, err error) {
	for cached, err := range cnicache.All(fsys) {
		if err != nil {
			return nil, nil, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
		}
		found := mentions(cached.Config, ours.types, ours.kubeconfig)
		name := cached.NetworkName + "/" + cached.ContainerID + "/" + cached.IfName
		switch {
		case len(found) == 0 || ours.agents(cached):
		case slices.ContainsFunc(found, func(m mention) bool { return m.plugin || m.broken }):
			made = append(made, name)
		default:
			naming = append(naming, "the list of the attachment "+name+" "+found[0].String())
		}
	}
	return made, naming, nil
}

// agents reports whether containerd attached one of the agent's pods. The plugin recognizes these by the same rule.
func (o ours) agents(a cnicache.Attachment) bool {
	return containerds(a) && o.agentPrefix != "" &&
		a.Arg("K8S_POD_NAMESPACE") == o.agentNamespace && strings.HasPrefix(a.Arg("K8S_POD_NAME"), o.agentPrefix)
}

// containerds reports whether containerd made the attachment: no other runtime both passes annotations and names its network
// namespaces like this.
func containerds(a cnicache.Attachment) bool {
	if _, ok := a.CapabilityArgs[netconf.AnnotationsCapability]; !ok {
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
