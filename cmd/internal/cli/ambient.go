package cli

import (
	"fmt"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// Ambient declares the flags for the settings of the dialect ambient.
func Ambient(fs *pflag.FlagSet, a *netconf.Ambient) {
	fs.VarPF(Text(&a.DNSCapture, "bool"), "ambient-dns-capture", "", "dialect ambient: capture DNS queries of pods whose annotation does not say otherwise (default true)").NoOptDefVal = "true"
	fs.VarPF(Text(&a.IPv6, "bool"), "ambient-ipv6", "", "dialect ambient: capture IPv6; false: it bypasses the mesh, see --uncaptured-family (default true)").NoOptDefVal = "true"
	fs.Var(selectors{&a.EnablementSelectors}, "ambient-enablement-selectors", "dialect ambient: which pods, as a list of podSelector and namespaceSelector in YAML or JSON; [] is none (default: by the label istio.io/dataplane-mode)")
	fs.Var(Text(&a.ProbeIPv4, "addr"), "ambient-probe-ipv4", "dialect ambient: source address that this node's own connections to pods in the mesh get (default 169.254.7.127)")
	fs.Var(Text(&a.ProbeIPv6, "addr"), "ambient-probe-ipv6", "dialect ambient: the same for IPv6 (default fd16:9254:7127:1337:ffff:ffff:ffff:ffff)")
}

// SelectorsType is the type of a flag for selectors, whose value is YAML or JSON.
const SelectorsType = "selectors"

type selectors struct{ to *netconf.Selectors }

func (s selectors) Set(text string) error {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return fmt.Errorf("a list of selectors: %w", err)
	}
	return s.to.UnmarshalText(data)
}

func (s selectors) String() string { return s.to.String() }
func (s selectors) Type() string   { return SelectorsType }
