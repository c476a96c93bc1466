//go:build linux

package nodeagent

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/rights"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Permissions returns what the agent and its plugin ask of the API server, so that roles can be checked. The settings are valid.
func (o Options) Permissions() ([]agentapi.Right, error) {
	o = o.withDefaults()
	return o.permissions(o.Config, false)
}

func (o Options) permissions(s Config, ownToken bool) ([]agentapi.Right, error) {
	n := rights.Needs{
		OwnToken:  ownToken,
		Namespace: s.Plugin.PodNamespace, Node: s.Node, PluginAccount: s.PluginServiceAccount, WriteStatus: s.Plugin.WriteStatus, Ambient: s.Ambient.Enabled,
		Serves: s.Plugin.Agent != netconf.AgentOff && s.Node != "", OnlyServes: s.Plugin.Agent == netconf.AgentRequire,
	}
	if s.UninstallOnExit == OnExitAuto {
		n.DaemonSet = s.DaemonSetName
	}
	meshes, err := o.meshes(s)
	if err != nil {
		return nil, err
	}
	n.Namespaces = meshes.MayReadNamespace()
	if (s.acts() || s.Repair.Detect != nil || s.AutoEvict) && s.Node != "" {
		repairs, err := o.permissible(s)
		if err != nil {
			return nil, err
		}
		n.Repair = repairs.Permissions()
	}
	return rights.Agent(n), nil
}

// meshes are those that the plugin decides by, without the namespaces that it excludes by name.
func (o Options) meshes(s Config) (dialect.List, error) {
	installed := s.Effective()
	installed.Kubernetes.ExcludeNamespaces = nil
	m, err := o.configured(installed)
	return m.Meshes, err
}
