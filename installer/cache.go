//go:build linux

package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

// annotationsCapability is of containerd alone: a pod's annotations, for each plugin that wants them
// (github.com/containerd/containerd, internal/cri/annotations and sandbox_run.go).
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// agentPrefix begins the names of the agent's pods, which the plugin lets through (plugin.DefaultAgentPrefix).
const agentPrefix = "meshcni-node-"

// Attachments lists, from libcni's cache (the directory whose "results" fsys is, or "cache/results" where the runtime is
// cri-dockerd), the attachments whose list contains a plugin of the type: each may have its DEL called with that very list,
// whatever the configuration directory says by then. They are named network/container/interface. A missing cache has none.
//
// That of the agent's own pod, in agentNamespace, is left out where containerd made it. It would else keep the binary on
// the node for ever, since it lasts longer than the agent that uninstalls; and containerd, other than CRI-O, calls DEL with the list
// that is in the configuration directory, in which the plugin no longer is.
func Attachments(fsys fs.FS, pluginType, agentNamespace string) ([]string, error) {
	var all []string
	for _, dir := range []string{"results", "cache/results"} {
		some, err := attachments(fsys, dir, pluginType, agentNamespace)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func attachments(fsys fs.FS, dir, pluginType, agentNamespace string) ([]string, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := fs.ReadFile(fsys, dir+"/"+e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // its DEL came just now
		}
		if err != nil {
			return nil, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
		}
		var cached attachment
		if json.Unmarshal(data, &cached) != nil {
			continue // libcni could not use it either
		}
		if f, err := conflist.Parse(cached.Config); err == nil && f.Has(pluginType) && !cached.agents(agentNamespace) {
			out = append(out, cached.NetworkName+"/"+cached.ContainerID+"/"+cached.IfName)
		}
	}
	return out, nil
}

// attachment is what libcni keeps of one (libcni/api.go, cachedInfo).
type attachment struct {
	Config                           []byte
	NetworkName, ContainerID, IfName string
	CniArgs                          [][2]string
	CapabilityArgs                   map[string]json.RawMessage
}

// agents reports whether containerd attached a pod of the agent's, by the same rule by which the plugin lets those through.
func (a attachment) agents(namespace string) bool {
	args := map[string]string{}
	for _, pair := range a.CniArgs {
		args[pair[0]] = pair[1]
	}
	_, containerd := a.CapabilityArgs[annotationsCapability]
	return containerd && args["K8S_POD_NAMESPACE"] == namespace && strings.HasPrefix(args["K8S_POD_NAME"], agentPrefix)
}
