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
)

// Plan lists the work of a move.
type Plan struct {
	// From is the other plugin's name, one of [Names].
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

	peer    Peer
	changed []change // to the rules, by settings without equal
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
func (p Plan) Dialects() []string {
	if p.on("ambient.enabled") {
		return []string{"ambient", p.peer.Dialect}
	}
	return []string{p.peer.Dialect}
}

// ExcludedNamespaces are those of the values.
func (p Plan) ExcludedNamespaces() []string {
	names, _ := p.value("excludeNamespaces").([]string)
	return names
}

// AmbientEntry is the plugin's entry under the values for ambient mode, as JSON.
func (p Plan) AmbientEntry() []byte {
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

// Make returns the plan to move from a peer with settings. Every setting is in exactly one of the plan's lists, or has become
// part of one in Kept.
func Make(peer Peer, settings []Setting) Plan {
	b := &builder{Plan: Plan{
		From: peer.Name, peer: peer, Values: map[string]any{}, Kept: []Kept{}, Undone: []Note{}, Unknown: []Setting{}, Needless: []Note{},
	}, said: map[string]Setting{}}
	b.set("dialect", peer.Dialect)
	b.set("excludeNamespaces", []string{})
	for _, s := range settings {
		if s.Unread == "" {
			b.said[s.Key] = s
		}
	}
	for _, s := range settings {
		rule, ok := peer.rules[s.Key]
		if !ok {
			rule, ok = common[s.Key]
		}
		switch {
		case s.Unread != "" || !ok && !strings.HasPrefix(s.Key, "container "):
			b.Unknown = append(b.Unknown, s)
		case !ok:
			b.undone(s, "a container of its own beside the installer's: see what it does, and whether you need it", false)
		default:
			rule(b, s)
		}
	}
	b.Steps = slices.Concat(peer.before, []string{
		"Write the values with --values FILE, and read what the report says under settings: what has no equal is yours to decide.",
	}, b.steps, b.switchOver(), []string{
		"kubectl meshcni check then finds nothing, and kubectl meshcni status counts the pods as captured.",
	})
	return b.Plan
}

// switchOver lists the steps that bring the one and remove the other.
func (b *builder) switchOver() []string {
	const (
		install = "helm install meshcni with the values, in a namespace of its own, and wait until it is ready. "
		restart = "Restart the pods, workload by workload: kubectl rollout restart. A running pod keeps the rules that it has."
	)
	remove := b.peer.remove
	switch {
	case b.on("ambient.enabled"):
		return slices.Concat([]string{"Only one agent may hold ztunnel's socket, so the other goes first. Do this in a maintenance window: pods that start in between are not captured until ours is there."},
			remove, []string{install + "It takes running pods of ambient mode over. Restart those with a sidecar that started in between."})
	case b.From == InitContainers:
		return slices.Concat([]string{install + "It leaves pods alone whose init container writes the rules."}, remove, []string{restart})
	case b.value("cni.chained") == false:
		return slices.Concat([]string{install + "It writes a file that Multus calls for pods that ask for it, so nothing changes yet."}, []string{restart}, remove)
	}
	return slices.Concat([]string{
		install + "Its entry comes after the other's, and a new pod may get rules of both: ours replace those in chains of the same names, tables of nftables that are the other's own stay. So keep the time short, and start no rollout meanwhile. The agents warn of other-mesh as long as it lasts.",
		"kubectl meshcni migrate switch NODE, for one node first, and then for more or with --all. It keeps the other's agent off the node, takes its entry out, and tries connections. kubectl meshcni migrate back NODE undoes it.",
	}, remove, []string{restart + " Those that started with both have to be among them."})
}

type builder struct {
	Plan
	said  map[string]Setting
	steps []string // of settings
}

func (b *builder) keep(s Setting, path string, to any) {
	b.set(path, to)
	b.Kept = append(b.Kept, Kept{s, path, to})
}

func (b *builder) undone(s Setting, do string, rules bool) {
	b.Undone = append(b.Undone, Note{s, do, rules})
}

func (b *builder) needless(s Setting, why string) {
	b.Needless = append(b.Needless, Note{Setting: s, Text: why})
}

// wrong is a value that the other plugin would not take either, or that this program does not understand.
func (b *builder) wrong(s Setting, err error) {
	s.Unread = fmt.Sprintf("%q is not understood: %v", s.Value, err)
	b.Unknown = append(b.Unknown, s)
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

// Peer is another plugin, or the init containers.
type Peer struct {
	// Name is its name for --from, and the type of its entry where it has one.
	Name string
	// Dialect is the mesh's name here.
	Dialect string

	rules          map[string]rule
	recognise      func(*appsv1.DaemonSet) bool
	before, remove []string
}

// rule translates a setting.
type rule func(*builder, Setting)

// Recognise returns the peers that a DaemonSet belongs to: none or one.
func Recognise(ds *appsv1.DaemonSet) (Peer, bool) {
	for _, p := range peers {
		if p.recognise != nil && p.recognise(ds) {
			return p, true
		}
	}
	return Peer{}, false
}

// InitContainers is the name of the peer that is no plugin.
const InitContainers = "init-containers"

// Names lists the peers.
func Names() (names []string) {
	for _, p := range peers {
		names = append(names, p.Name)
	}
	return append(names, InitContainers)
}

// Plugins lists the peers that are plugins.
func Plugins() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return name == InitContainers })
}

// Named returns a peer by its name. For [InitContainers], see [Inits].
func Named(name string) (Peer, bool) {
	i := slices.IndexFunc(peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return Peer{}, false
	}
	return peers[i], true
}

// Inits is the peer of pods whose init container writes the rules of a mesh.
func Inits(dialect string) Peer {
	p := Peer{Name: InitContainers, Dialect: dialect}
	if off, ok := injectors[dialect]; ok {
		p.remove = []string{off}
	}
	return p
}
