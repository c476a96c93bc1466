//go:build linux

package nodeagent

import (
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Permissions returns what the agent and its plugin ask of the API server, so that roles can be checked. The settings are valid.
func (o Options) Permissions() ([]agentapi.Right, error) {
	o = o.withDefaults()
	return o.permissions(o.Config, false)
}

func (o Options) permissions(s Config, ownToken bool) ([]agentapi.Right, error) {
	entry := s.entry()
	n := rights.Needs{
		OwnToken:  ownToken,
		Namespace: s.Plugin.PodNamespace, Node: s.Node, PluginAccount: s.PluginServiceAccount, WriteStatus: entry.WriteStatus, Ambient: s.Ambient.Enabled,
		Serves: entry.Agent != netconf.AgentOff && s.Node != "", OnlyServes: entry.Agent == netconf.AgentRequire,
	}
	if s.Alone { // the agent does what the plugin would, with the pods that it has
		n.PluginAccount, n.OnlyServes = "", true
	}
	if s.UninstallOnExit == installer.SwitchAuto {
		n.DaemonSet = s.DaemonSetName
	}
	meshes, err := o.meshes(s)
	if err != nil {
		return nil, err
	}
	n.Namespaces = meshes.ReadsNamespace(nil)
	if (s.acts() || s.Repair.Detect != nil || s.AutoEvict) && s.Node != "" {
		repairs, err := o.permissible(s)
		if err != nil {
			return nil, err
		}
		n.Repair = repairs.Permissions()
	}
	return rights.Agent(n), nil
}
