// Package migration says what it takes to move from another plugin that redirects pods to this one: which of its settings the chart
// has too, which need something done, and whose traffic would go otherwise. It does no I/O: the other plugin's objects, the pods
// and their rules are arguments.
package migration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/migrate/otherplugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
)

// Plan lists the work of a move.
type Plan struct {
	// From is the other plugin's name, or [InitContainers].
	From string `json:"from"`
	// Values are those of the chart.
	Values map[string]any `json:"values"`
	// Kept are the settings that are in the values.
	Kept []Kept `json:"kept"`
	// Undone are those that have no equal here, with what to do.
	Undone []Note `json:"undone"`
	// Unknown are those that this program does not know, or could not read.
	Unknown []Setting `json:"unknown"`
	// Needless are those that need nothing, with the reason.
	Needless []Note `json:"needless"`
	// Steps are in order.
	Steps []string `json:"steps"`

	mesh    mesh.Facts
	onNode  []string // the dialects of meshes with a proxy on the node that a setting switches on
	changed []change // to the rules, by settings without equal
}

// change is the effect on a pod's rules of a setting without an equal here, so that the other's rules can be told from ours.
type change struct {
	Setting
	otherplugin.Outcome
}

// Kept is a setting and the values that it has become.
type Kept struct {
	Setting
	Path string `json:"path"`
	To   any    `json:"to"`
}

// Note is a setting with a sentence.
type Note struct {
	Setting
	Text string `json:"text"`
	// Rules is set if the setting changes who or what is captured.
	Rules bool `json:"rules,omitempty"`
}

// Dialects are the names of the meshes that the values choose, in order.
func (p Plan) Dialects() []string { return append(slices.Clip(p.onNode), p.mesh.Name) }

// OnNode reports whether the other plugin serves a mesh whose proxy is on the node.
func (p Plan) OnNode() bool { return len(p.onNode) > 0 }

// excludedNamespaces are those of the values.
func (p Plan) excludedNamespaces() []string {
	names, _ := p.value("excludeNamespaces").([]string)
	return names
}

// The chart's defaults of the plugin's settings that no peer has.
const (
	chartUncapturedFamily               = redirect.UncapturedAllow
	chartRefuseProxyUID, chartRefuseRaw = true, false
)

// Entry is the plugin's configuration under the values.
func (p Plan) Entry() netconf.Config {
	c, _, _ := netconf.Parse(p.ambientEntry(), meshcni.Identity{}) // only the mesh finds faults
	c.Dialects, c.Kubernetes.ExcludeNamespaces = p.Dialects(), p.excludedNamespaces()
	c.UncapturedFamily, c.RefuseProxyUID, c.RefuseNetRaw = chartUncapturedFamily, chartRefuseProxyUID, chartRefuseRaw
	return c
}

// ambientEntry is the plugin's entry under the values for ambient mode, as JSON.
func (p Plan) ambientEntry() []byte {
	said, entry := p.value("ambient"), map[string]any{}
	values, _ := said.(map[string]any)
	for from, to := range map[string]string{
		"dnsCapture": "dns_capture", "ipv6": "ipv6", "enablementSelectors": "enablement_selectors", "probeIPv4": "probe_ipv4", "probeIPv6": "probe_ipv6",
	} {
		if v, ok := values[from]; ok && p.on("ambient.enabled") {
			entry[to] = v
		}
	}
	text, err := json.Marshal(map[string]any{"ambient": entry})
	if err != nil {
		panic(err) // selectors, strings and bools
	}
	return text
}

func (p Plan) on(path string) bool { return p.value(path) == true }

func (p Plan) value(path string) any {
	var at any = p.Values
	for name := range strings.SplitSeq(path, ".") {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	return at
}

// Make returns the plan to move from a mesh's own plugin, by its settings. Every setting is in exactly one of the plan's lists, or has
// become part of one in Kept.
func Make(product meshcni.Identity, from Source, settings []Setting) Plan {
	b, said := begin(product, from.Plugin.Type, from.Facts), map[string]string{}
	for _, s := range settings {
		if s.Unread == "" {
			said[s.Key] = s.Value
		}
	}
	for _, s := range settings {
		translate := from.Plugin.Settings[s.Key]
		if translate == nil {
			translate = common[s.Key]
		}
		switch {
		case s.Unread == "" && translate != nil:
			b.take(s, translate(s.Value, said))
		case s.Unread == "" && strings.HasPrefix(s.Key, "container "):
			b.take(s, otherplugin.Outcome{Undone: "a container of its own beside the installer's: see what it does, and whether you need it"})
		default:
			b.Unknown = append(b.Unknown, s)
		}
	}
	return b.end(from.Plugin.Before, from.Plugin.Remove)
}

// MakeInits returns the plan to move from the init containers of a mesh.
func MakeInits(product meshcni.Identity, from mesh.Facts, d dialect.Dialect) Plan {
	var remove []string
	if mode := from.Injection.PluginMode; mode != "" {
		remove = []string{"Tell the injector that there is a plugin: " + mode + "."}
		if d.Check.Container != "" && len(d.Policy.InitContainers) > 0 {
			remove[0] += " New pods then have " + d.Check.Container + " instead of " + d.Policy.InitContainers[0] + "."
		}
	}
	return begin(product, InitContainers, from).end(nil, remove)
}

// common are the settings that all DaemonSets have.
var common = map[string]otherplugin.Translate{"nodeSelector": otherplugin.Keep("nodeSelector", object), "affinity": otherplugin.Keep("affinity", object)}

func object(v string) (any, error) {
	var m map[string]any
	return m, yaml.UnmarshalStrict([]byte(v), &m)
}

func begin(product meshcni.Identity, name string, from mesh.Facts) *builder {
	b := &builder{product: product, Plan: Plan{
		From: name, mesh: from, Values: map[string]any{}, Kept: []Kept{}, Undone: []Note{}, Unknown: []Setting{}, Needless: []Note{},
	}}
	b.set("dialect", from.Name)
	b.set("excludeNamespaces", []string{})
	return b
}

// end adds the steps.
func (b *builder) end(before, remove []string) Plan {
	b.Steps = slices.Concat(before, []string{
		"Write the values with --values FILE, and read what the report says under settings: what has no equal is yours to decide.",
	}, b.steps, b.switchOver(remove), []string{
		b.product.Text("kubectl meshcni check then finds nothing, and kubectl meshcni status counts the pods as captured."),
	})
	return b.Plan
}

// switchOver lists the steps that bring the one and remove the other.
func (b *builder) switchOver(remove []string) []string {
	install := "helm install " + b.product.WithDefaults().Name + " with the values, in a namespace of its own, and wait until it is ready. "
	const restart = "Restart the pods, workload by workload: kubectl rollout restart. A running pod keeps the rules that it has."
	switch {
	case b.OnNode():
		return slices.Concat([]string{"Only one agent may hold ztunnel's socket, so the other goes first. Do this in a maintenance window: pods that start in between are not captured until ours is there."},
			remove, []string{install + "It takes running pods of ambient mode over. Restart those with a sidecar that started in between."})
	case b.From == InitContainers:
		return slices.Concat([]string{install + "It leaves pods alone whose init container writes the rules."}, remove, []string{restart})
	case b.value("cni.chained") == false:
		return slices.Concat([]string{install + "It writes a file that Multus calls for pods that ask for it, so nothing changes yet."}, []string{restart}, remove)
	}
	return slices.Concat([]string{
		install + "Its entry comes after the other's, and a new pod may get rules of both: ours replace those in chains of the same names, tables of nftables that are the other's own stay. So keep the time short, and start no rollout meanwhile. The agents warn of other-mesh as long as it lasts.",
		b.product.Text("kubectl meshcni migrate switch NODE, for one node first, and then for more or with --all. It keeps the other's agent off the node, takes its entry out, and tries connections. kubectl meshcni migrate back NODE undoes it."),
	}, remove, []string{restart + " Those that started with both have to be among them."})
}

type builder struct {
	Plan
	product meshcni.Identity
	steps   []string // of settings
}

// take notes what becomes of a setting.
func (b *builder) take(s Setting, o otherplugin.Outcome) {
	switch {
	case o.Err != nil: // the other plugin would not take it either, or this program does not understand it
		s.Unread = fmt.Sprintf("%q is not understood: %v", s.Value, o.Err)
		b.Unknown = append(b.Unknown, s)
		return
	case o.Path != "":
		b.set(o.Path, o.Value)
		b.Kept = append(b.Kept, Kept{s, o.Path, o.Value})
	case o.Undone != "":
		b.Undone = append(b.Undone, Note{s, o.Undone, o.Rules})
	default:
		b.Needless = append(b.Needless, Note{Setting: s, Text: o.Needless})
	}
	if o.Change != nil {
		b.changed = append(b.changed, change{s, o})
	}
	if o.OnNode != "" {
		b.onNode = append(b.onNode, o.OnNode)
	}
	if o.Step != "" {
		b.steps = append(b.steps, o.Step)
	}
	for path, value := range o.Also {
		b.set(path, value)
	}
}

func (b *builder) set(path string, to any) {
	at := b.Values
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	at[names[len(names)-1]] = to
}

// InitContainers is what to move from that is no plugin.
const InitContainers = "init-containers"

// Source is a mesh with a plugin of its own, to move from.
type Source struct {
	mesh.Facts
	Plugin otherplugin.Plugin
}

// Sources returns the meshes whose own plugin is known, in their order.
func Sources(meshes mesh.List, plugins []otherplugin.Plugin) (all []Source) {
	for _, f := range meshes {
		if i := slices.IndexFunc(plugins, func(p otherplugin.Plugin) bool { return p.Mesh == f.Name }); i >= 0 {
			all = append(all, Source{f, plugins[i]})
		}
	}
	return all
}

// Plugins lists the names of the meshes' own plugins.
func Plugins(from []Source) (names []string) {
	for _, f := range from {
		names = append(names, f.Plugin.Type)
	}
	return names
}

// Recognise returns the mesh whose plugin a DaemonSet installs.
func Recognise(from []Source, ds *appsv1.DaemonSet) (Source, bool) {
	names := ConfigMaps(ds)
	return first(from, func(f Source) bool { return f.Plugin.Installs(ds.Labels, &ds.Spec.Template.Spec, names) })
}

// Named returns the mesh whose plugin has a name.
func Named(from []Source, plugin string) (Source, bool) {
	return first(from, func(f Source) bool { return f.Plugin.Type == plugin })
}

func first(from []Source, is func(Source) bool) (Source, bool) {
	if i := slices.IndexFunc(from, is); i >= 0 {
		return from[i], true
	}
	return Source{}, false
}
