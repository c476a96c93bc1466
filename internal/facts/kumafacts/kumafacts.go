// Package kumafacts has the facts of Kuma that its rules do not need: see [mesh.Facts].
package kumafacts

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// New returns the facts.
func New() mesh.Facts {
	// The label counts as yes or no by strconv.ParseBool and by the words of Kuma's own (pkg/plugins/runtime/k8s/metadata).
	asks := []mesh.Wish{mesh.Label("kuma.io/sidecar-injection", []string{"enabled", "true", "yes"}, []string{"disabled", "false", "no"})}
	return mesh.Facts{
		Name: "kuma", Title: "Kuma",
		Injection: mesh.Injection{
			Pod: asks, Namespace: asks, PodWins: true, Unasked: mesh.No,
			Webhook:    "kuma-injector.kuma.io",
			Health:     "kubectl --namespace kuma-system get pods says whether the control plane, which injects, runs",
			PluginMode: "KUMA_RUNTIME_KUBERNETES_INJECTOR_CNI_ENABLED=true in the variables of Kuma's control plane",
		},
		TestPod:     mesh.TestPod{Annotations: map[string]string{kuma.SidecarInjected: "true", kuma.Config: "{}"}},
		Init:        &mesh.Init{Flags: flags, Annotations: annotations},
		PluginTypes: []string{"kuma-cni"},
		Advice: map[status.Code]mesh.Advice{status.CodeDryRun: {
			Because: "its configuration asks for a dry run (%s)", Do: "Take dryRun out of Kuma's configuration of the transparent proxy, from which the injector copies it",
		}},
	}
}

// places are those of the flags of kumactl install transparent-proxy in the configuration that --config has.
var places = map[string]string{
	"kuma-dp-user": "kumaDPUser", "kuma-dp-uid": "kumaDPUser", "ip-family-mode": "ipFamilyMode",
	"redirect-inbound": "redirect.inbound.enabled", "redirect-inbound-port": "redirect.inbound.port", "redirect-outbound-port": "redirect.outbound.port",
	"exclude-inbound-ports": "redirect.inbound.excludePorts", "exclude-outbound-ports": "redirect.outbound.excludePorts",
	"exclude-inbound-ips": "redirect.inbound.excludePortsForIPs", "exclude-outbound-ips": "redirect.outbound.excludePortsForIPs",
	"exclude-outbound-ports-for-uids": "redirect.outbound.excludePortsForUIDs",
	"redirect-dns-port":               "redirect.dns.port", "skip-dns-conntrack-zone-split": "redirect.dns.skipConntrackZoneSplit",
	"drop-invalid-packets": "dropInvalidPackets", "iptables-logs": "log.enabled", "vnet": "redirect.vnet.networks", "dry-run": "dryRun",
}

var flags = []mesh.Flag{
	{Name: "config"}, {Name: "config-file"}, {Name: "redirect-all-dns-traffic", Bool: true}, {Name: "redirect-dns", Bool: true},
	{Name: "kuma-dp-user"}, {Name: "kuma-dp-uid"}, {Name: "ip-family-mode"},
	{Name: "redirect-inbound", Bool: true}, {Name: "redirect-inbound-port"}, {Name: "redirect-outbound-port"},
	{Name: "exclude-inbound-ports", List: true}, {Name: "exclude-outbound-ports", List: true},
	{Name: "exclude-inbound-ips", List: true}, {Name: "exclude-outbound-ips", List: true},
	{Name: "exclude-outbound-ports-for-uids", Repeated: true}, {Name: "vnet", Repeated: true}, // whose values have commas
	{Name: "redirect-dns-port"}, {Name: "skip-dns-conntrack-zone-split", Bool: true},
	{Name: "drop-invalid-packets", Bool: true}, {Name: "iptables-logs", Bool: true}, {Name: "dry-run", Bool: true},
	// These change no rule.
	{Name: "verbose", Bool: true}, {Name: "wait"}, {Name: "wait-interval"}, {Name: "max-retries"}, {Name: "sleep-between-retries"},
	{Name: "comments"}, {Name: "disable-comments", Bool: true}, {Name: "iptables-executables"}, {Name: "store-firewalld", Bool: true},
}

// annotations makes one configuration of the arguments. A flag counts before the same value in --config.
func annotations(c mesh.InitContainer) (map[string]string, error) {
	config, _, _ := c.Value("config")
	file, _, _ := c.Value("config-file")
	switch {
	case file != "":
		return nil, fmt.Errorf("its configuration is in file %s, not in the pod", file)
	case len(c.Container.Args) == 0:
		return nil, errors.New("it has no arguments, so its configuration is not in them")
	}
	doc := map[string]any{}
	if err := yaml.Unmarshal([]byte(config), &doc); err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	if doc == nil {
		doc = map[string]any{}
	}
	var errs []error
	for _, f := range flags {
		if v, ok, _ := c.Value(f.Name); ok && places[f.Name] != "" {
			errs = append(errs, put(doc, places[f.Name], read(f, v, c.Values(f.Name))))
		}
	}
	all, is, _ := c.Value("redirect-all-dns-traffic")
	dns, either, _ := c.Value("redirect-dns")
	if is || either {
		errs = append(errs, put(doc, "redirect.dns.enabled", isOn(all) || isOn(dns)), put(doc, "redirect.dns.captureAll", isOn(all)))
	}
	if doc["dryRun"] == true {
		errs = append(errs, errors.New("with dryRun it writes no rules"))
	}
	text, err := json.Marshal(doc)
	return map[string]string{kuma.Config: string(text)}, errors.Join(append(errs, err)...)
}

// read returns the flag's value as the configuration has it.
func read(f mesh.Flag, value string, all []string) any {
	switch {
	case f.Bool:
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return value // which is refused there
		}
		return on
	case f.Repeated:
		return all
	case f.List:
		list := []string{}
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
		return list
	}
	return value
}

// isOn reports whether a flag is on.
func isOn(value string) bool {
	on, err := strconv.ParseBool(strings.TrimSpace(value))
	return err == nil && on
}

// put sets a value at a path of keys.
func put(doc map[string]any, path string, v any) error {
	at, names := doc, strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		if at[name] == nil {
			at[name] = map[string]any{}
		}
		next, ok := at[name].(map[string]any)
		if !ok {
			return fmt.Errorf("--config: %s is no mapping", name)
		}
		at = next
	}
	at[names[len(names)-1]] = v
	return nil
}
