//go:build linux

package nodecmd

import (
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/rights"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Rights returns what the agent and its plugin ask of the API server with these settings, so that roles can be checked. Settings that
// [Program.Parse] refuses have no rights to speak of.
func (p Program) Rights(s Settings) ([]agentapi.Right, error) {
	p.setDefaults()
	return p.rights(s, false)
}

func (p Program) rights(s Settings, ownToken bool) ([]agentapi.Right, error) {
	n := rights.Needs{
		OwnToken:  ownToken,
		Namespace: s.Plugin.PodNamespace, Node: s.Repair.Node, PluginAccount: s.PluginServiceAccount, WriteStatus: s.Plugin.WriteStatus, Ambient: s.Ambient.Enabled,
		Serves: s.Plugin.Agent != netconf.AgentOff && s.Repair.Node != "", OnlyServes: s.Plugin.Agent == netconf.AgentRequire,
	}
	if s.UninstallOnExit == OnExitAuto {
		n.DaemonSet = s.DaemonSetName
	}
	meshes, err := p.meshes(s)
	if err != nil {
		return nil, err
	}
	n.Namespaces = meshes.MayReadNamespace()
	if (s.Repair.Enabled() || s.AutoEvict) && s.Repair.Node != "" {
		if n.Repair, err = s.Repair.Permissions(p.Dialects); err != nil && s.Repair.Acts() {
			return nil, err
		} // detection that cannot begin asks for nothing, and the agent says why
	}
	return rights.Agent(n), nil
}

// meshes are those that the plugin decides by, without the namespaces that it excludes by name.
func (p Program) meshes(s Settings) (dialect.List, error) {
	installed := s.asInstalled()
	installed.Kubernetes.ExcludeNamespaces = nil
	if p.invalid != nil {
		return nil, p.invalid
	}
	m, err := dialects.OfValid(p.Dialects, installed)
	return m.Meshes, err
}
