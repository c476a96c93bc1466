package meshcni

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
)

// Identity holds the names under which a product appears: to Kubernetes, on the node, in metrics and in texts. Each program and library of
// this module takes one. Name is enough: what is empty follows from it. The zero value is meshcni's own.
//
// It belongs to the product, not to a cluster: nothing in it is ever taken from a pod. Agents that are updated must keep it, because they
// know by it what those before them have left on the node and in the cluster.
type Identity struct {
	// Name is the product's, a DNS label such as "acme". Its programs are NAME-redirect, NAME-repair and NAME-taint, its Lease
	// NAME-taint, and its image has the plugin in /opt/NAME/bin. Default: meshcni.
	Name string
	// Version is printed by --version, and is in logs and requests. Default: this module's, with the build.
	Version string

	// Plugin is the plugin's type in network configurations, and its file name. Default: NAME-cni; meshcni for meshcni.
	Plugin string
	// Agent is the node agent's program, and the name of its DaemonSet; with a "-" it begins the names of its pods, which the plugin
	// lets through. Default: NAME-node.
	Agent string
	// AgentSelector has the labels of the agents' pods, as key=value with commas between.
	// Default: app.kubernetes.io/name=NAME,app.kubernetes.io/component=node.
	AgentSelector string
	// PluginAccount is the service account whose token the agent requests for the plugin. Default: NAME-plugin.
	PluginAccount string
	// Kubectl is the command of the product's kubectl plugin, as users type it. Default: kubectl NAME.
	Kubectl string

	// Namespace has the agents, unless a setting names another. Default: NAME-system.
	Namespace string
	// RunDir is the directory of the node that the plugin and the agent share, unless a setting names another. Default: /var/run/PLUGIN.
	RunDir string

	// LabelPrefix begins the keys of labels and annotations, and the taint's. Default: NAME.io/.
	LabelPrefix string
	// MetricPrefix begins the names of metrics, and EnvPrefix the variables of flags. Default: NAME_, in upper case for EnvPrefix, with
	// "_" for "-".
	MetricPrefix, EnvPrefix string

	// Docs is the address of the pages of this module's directory docs: texts refer to their sections. Default: those of this module.
	Docs string
}

const (
	ownName = "meshcni"
	ownDocs = "https://github.com/meshcni/meshcni/blob/main/docs/"
)

// DefaultIdentity returns that of meshcni's own programs.
func DefaultIdentity() Identity { return Identity{}.WithDefaults() }

// WithDefaults returns the identity with what follows for its empty fields. Version stays as it is.
func (i Identity) WithDefaults() Identity {
	i.Name = cmp.Or(i.Name, ownName)
	if i.Name == ownName {
		i.Plugin = cmp.Or(i.Plugin, ownName)
	}
	i.Plugin = cmp.Or(i.Plugin, i.Name+"-cni")
	i.Agent = cmp.Or(i.Agent, i.Name+"-node")
	i.AgentSelector = cmp.Or(i.AgentSelector, "app.kubernetes.io/name="+i.Name+",app.kubernetes.io/component=node")
	i.PluginAccount = cmp.Or(i.PluginAccount, i.Name+"-plugin")
	i.Kubectl = cmp.Or(i.Kubectl, "kubectl "+i.Name)
	i.Namespace = cmp.Or(i.Namespace, i.Name+"-system")
	i.RunDir = cmp.Or(i.RunDir, "/var/run/"+i.Plugin)
	i.LabelPrefix = cmp.Or(i.LabelPrefix, i.Name+".io/")
	word := strings.ReplaceAll(i.Name, "-", "_")
	i.MetricPrefix = cmp.Or(i.MetricPrefix, word+"_")
	i.EnvPrefix = cmp.Or(i.EnvPrefix, strings.ToUpper(word)+"_")
	i.Docs = cmp.Or(i.Docs, ownDocs)
	return i
}

// Program returns the name of one of the product's programs or objects: "redirect" is NAME-redirect.
func (i Identity) Program(part string) string { return i.WithDefaults().Name + "-" + part }

// KubectlProgram returns the file name of the kubectl plugin, by which kubectl finds it: kubectl-NAME.
func (i Identity) KubectlProgram() string {
	return strings.ReplaceAll(i.WithDefaults().Kubectl, " ", "-")
}

// AgentPrefix returns what the names of the agent's pods begin with.
func (i Identity) AgentPrefix() string { return i.WithDefaults().Agent + "-" }

// Key returns the key of a label, an annotation or a taint.
func (i Identity) Key(name string) string { return i.WithDefaults().LabelPrefix + name }

// Taint returns the key of the taint that keeps pods off a node until its agent is ready.
func (i Identity) Taint() string { return i.Key("agent-not-ready") }

// Metric returns the name of a metric.
func (i Identity) Metric(name string) string { return i.WithDefaults().MetricPrefix + name }

// Env returns the name of the variable of a flag.
func (i Identity) Env(flag string) string {
	return i.WithDefaults().EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Page returns a section of the documentation as texts refer to it: "docs/check.md#no-agents" if the product is meshcni, else its address.
func (i Identity) Page(section string) string {
	if i = i.WithDefaults(); i.Name == ownName && i.Docs == ownDocs {
		return "docs/" + section
	}
	return i.Docs + section
}

// Text returns a text that names the programs of meshcni with those of this product. It is for constant texts of this module: in one
// with data, that could be changed too.
func (i Identity) Text(constant string) string {
	i.Version = ""
	own := DefaultIdentity()
	if i = i.WithDefaults(); i == own {
		return constant
	}
	return strings.NewReplacer(own.Kubectl, i.Kubectl, own.Agent, i.Agent, own.RunDir, i.RunDir, own.Program("redirect"), i.Program("redirect"),
		own.Program("repair"), i.Program("repair"), own.Program("taint"), i.Program("taint"), own.LabelPrefix, i.LabelPrefix,
		own.MetricPrefix, i.MetricPrefix, own.EnvPrefix, i.EnvPrefix, " docs/", " "+i.Docs).Replace(constant)
}

// Validate returns an error for every field that is wrong, joined.
func (i Identity) Validate() error {
	var errs []error
	wrong := func(field, value, must string) {
		errs = append(errs, fmt.Errorf("identity: %s %q: must %s", field, value, must))
	}
	if i.Name != "" && !isLabel(i.Name, 40) {
		wrong("Name", i.Name, "be a DNS label of at most 40 characters: a-z, 0-9 and - within")
		i.Name = "" // what follows from it is no fault of its own
	}
	for _, r := range i.Version {
		if r < ' ' || r > '~' {
			wrong("Version", i.Version, "be of printable ASCII characters")
			break
		}
	}
	i = i.WithDefaults()
	for _, f := range []struct {
		name, value string
		ok          bool
		must        string
	}{
		{"Plugin", i.Plugin, isFile(i.Plugin), "be a file name: letters, digits, and ._- within"},
		{"Agent", i.Agent, isLabel(i.Agent, 52), "be a DNS label of at most 52 characters: a-z, 0-9 and - within"}, // its pods' names are longer
		{"AgentSelector", i.AgentSelector, isSelector(i.AgentSelector), "be key=value with commas between"},
		{"PluginAccount", i.PluginAccount, isLabel(i.PluginAccount, 63), "be a DNS label"},
		{"Kubectl", i.Kubectl, isCommand(i.Kubectl), "be a command: words with one space between"},
		{"Namespace", i.Namespace, isLabel(i.Namespace, 63), "be a DNS label"},
		{"RunDir", i.RunDir, path.IsAbs(i.RunDir) && path.Clean(i.RunDir) == i.RunDir && i.RunDir != "/" && len(i.RunDir) <= 90,
			"be an absolute path of at most 90 bytes, without . and .."}, // sockets are in it: unix(7)
		{"LabelPrefix", i.LabelPrefix, isKeyPrefix(i.LabelPrefix), "be a DNS name and a /, and not Kubernetes' own"},
		{"MetricPrefix", i.MetricPrefix, isWord(i.MetricPrefix, isLower), "be of a-z, 0-9 and _, begin with a letter and end with _"},
		{"EnvPrefix", i.EnvPrefix, isWord(i.EnvPrefix, isUpper), "be of A-Z, 0-9 and _, begin with a letter and end with _"},
		{"Docs", i.Docs, isAddress(i.Docs), "be an address that begins with https:// and ends with /"},
	} {
		if !f.ok {
			wrong(f.name, f.value, f.must)
		}
	}
	return errors.Join(errs...)
}

func isLower(c rune) bool { return 'a' <= c && c <= 'z' }
func isUpper(c rune) bool { return 'A' <= c && c <= 'Z' }
func isDigit(c rune) bool { return '0' <= c && c <= '9' }

// isOf reports whether s consists of letters, digits and characters of within, which are at neither end.
func isOf(s, within string) bool {
	for _, c := range s {
		if !isLower(c) && !isUpper(c) && !isDigit(c) && !strings.ContainsRune(within, c) {
			return false
		}
	}
	return s != "" && strings.Trim(s, within) == s
}

func isLabel(s string, longest int) bool {
	return isOf(s, "-") && strings.ToLower(s) == s && len(s) <= longest
}

func isFile(s string) bool { return isOf(s, "._-") && len(s) <= 63 }

func isWord(s string, letter func(rune) bool) bool {
	for at, c := range s {
		if !letter(c) && (at == 0 || !isDigit(c) && c != '_') {
			return false
		}
	}
	return strings.HasSuffix(s, "_")
}

func isName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !isLabel(part, 63) {
			return false
		}
	}
	return len(s) <= 253
}

func isKeyPrefix(s string) bool {
	name, ok := strings.CutSuffix(s, "/")
	for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
		ok = ok && name != reserved && !strings.HasSuffix(name, "."+reserved)
	}
	return ok && isName(name)
}

func isSelector(s string) bool {
	for term := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(term, "=")
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			prefix, name = "", key
		}
		if !ok || !isOf(name, "._-") || !isOf(value, "._-") || prefixed && !isName(prefix) {
			return false
		}
	}
	return true
}

func isCommand(s string) bool {
	for word := range strings.SplitSeq(s, " ") {
		if !isOf(word, "._-") {
			return false
		}
	}
	return true
}

func isAddress(s string) bool {
	for _, c := range s {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return strings.HasPrefix(s, "https://") && strings.HasSuffix(s, "/") && len(s) > len("https://x")
}
