package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// Sandboxed declares the flags of pods of sandboxed runtimes.
func Sandboxed(fs *pflag.FlagSet, c *netconf.Config) {
	fs.BoolVar(&c.AllowSandboxed, "allow-sandboxed", c.AllowSandboxed, "let a pod start whose runtime class has a kernel or a network stack of its own: its traffic bypasses the mesh")
	fs.Var(List(&c.SandboxedClasses, "a,b"), "sandboxed-classes", "names of such runtime classes, or words in them (default: kata, gvisor and their like)")
}

// Ambient declares the flags for the settings of the dialect ambient. What else is wrong with a value, dialect.Configure
// says.
func Ambient(fs *pflag.FlagSet, c *netconf.Config) {
	setting := func(key, kind, usage string) *pflag.Flag {
		return fs.VarPF(&MeshSetting{c, "ambient", key, kind}, "ambient-"+strings.ReplaceAll(key, "_", "-"), "", "dialect ambient: "+usage)
	}
	setting("dns_capture", "bool", "capture DNS queries of pods whose annotation does not say otherwise (default true)").NoOptDefVal = "true"
	setting("ipv6", "bool", "capture IPv6; false: it bypasses the mesh, see --uncaptured-family (default true)").NoOptDefVal = "true"
	setting("enablement_selectors", SelectorsType, "which pods, as a list of podSelector and namespaceSelector in YAML or JSON; [] is none (default: by the label istio.io/dataplane-mode)")
	setting("system_namespace", "string", "the mesh's own namespace, whose pods of ztunnel are never in the mesh (default istio-system)")
	setting("probe_ipv4", "addr", "source address that this node's own connections to pods in the mesh get (default 169.254.7.127)")
	setting("probe_ipv6", "addr", "the same for IPv6 (default fd16:9254:7127:1337:ffff:ffff:ffff:ffff)")
}

// SelectorsType is the type of a flag for selectors, whose value is YAML or JSON.
const SelectorsType = "selectors"

// MeshSetting is a flag for one key of a mesh's own settings.
type MeshSetting struct {
	to              *netconf.Config
	mesh, key, kind string
}

func (s *MeshSetting) settings() (all map[string]json.RawMessage) {
	_ = json.Unmarshal(s.to.Meshes[s.mesh], &all)
	return all
}

// Set implements pflag.Value. It changes no map that another Config may have too.
func (s *MeshSetting) Set(text string) (err error) {
	var raw []byte
	switch {
	case text == "":
		return errors.New("must not be empty")
	case s.kind == "bool":
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		raw = strconv.AppendBool(nil, on)
	case s.kind == SelectorsType:
		raw, err = yaml.YAMLToJSONStrict([]byte(text))
	default:
		raw, err = json.Marshal(text)
	}
	if err != nil {
		return fmt.Errorf("a list of selectors: %w", err)
	}
	all := map[string]json.RawMessage{}
	maps.Copy(all, s.settings())
	all[s.key] = raw
	meshes := map[string]json.RawMessage{}
	maps.Copy(meshes, s.to.Meshes)
	if meshes[s.mesh], err = json.Marshal(all); err == nil {
		s.to.Meshes = meshes
	}
	return err
}

// String returns what [MeshSetting.Set] accepts, or "".
func (s *MeshSetting) String() (text string) {
	if s.to == nil {
		return ""
	}
	if raw := s.settings()[s.key]; json.Unmarshal(raw, &text) != nil {
		return string(raw)
	}
	return text
}

// Type implements pflag.Value.
func (s *MeshSetting) Type() string { return s.kind }
