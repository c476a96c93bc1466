package initrules

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// kumaFlag is a flag of kumactl install transparent-proxy, with where its value is in the configuration.
type kumaFlag struct {
	name, path string
	kind       kumaKind
}

type kumaKind int

const (
	one   kumaKind = iota // a value
	flag                  // true or false
	many                  // a list, separated by commas
	other                 // a list whose elements have commas: the flag is repeated
	none                  // it changes no rule
)

var kumaFlags = []kumaFlag{
	{"kuma-dp-user", "kumaDPUser", one}, {"kuma-dp-uid", "kumaDPUser", one}, {"ip-family-mode", "ipFamilyMode", one},
	{"redirect-inbound", "redirect.inbound.enabled", flag}, {"redirect-inbound-port", "redirect.inbound.port", one},
	{"redirect-outbound-port", "redirect.outbound.port", one},
	{"exclude-inbound-ports", "redirect.inbound.excludePorts", many}, {"exclude-outbound-ports", "redirect.outbound.excludePorts", many},
	{"exclude-inbound-ips", "redirect.inbound.excludePortsForIPs", many}, {"exclude-outbound-ips", "redirect.outbound.excludePortsForIPs", many},
	{"exclude-outbound-ports-for-uids", "redirect.outbound.excludePortsForUIDs", other},
	{"redirect-dns-port", "redirect.dns.port", one}, {"skip-dns-conntrack-zone-split", "redirect.dns.skipConntrackZoneSplit", flag},
	{"drop-invalid-packets", "dropInvalidPackets", flag}, {"iptables-logs", "log.enabled", flag}, {"vnet", "redirect.vnet.networks", other},
	{"dry-run", "dryRun", flag},
	{"verbose", "", none}, {"wait", "", none}, {"wait-interval", "", none}, {"max-retries", "", none}, {"sleep-between-retries", "", none},
	{"comments", "", none}, {"disable-comments", "", none}, {"iptables-executables", "", none}, {"store-firewalld", "", none},
}

// kumaConfig makes one configuration of the arguments. A flag counts before the same value in --config.
func kumaConfig(words []string) (string, error) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	config := fs.String("config", "", "")
	file := fs.String("config-file", "", "")
	all := fs.Bool("redirect-all-dns-traffic", false, "")
	dns := fs.Bool("redirect-dns", false, "")
	values := map[string]func() any{}
	for _, f := range kumaFlags {
		switch f.kind {
		case flag:
			v := fs.Bool(f.name, false, "")
			values[f.name] = func() any { return *v }
		case other:
			v := fs.StringArray(f.name, nil, "")
			values[f.name] = func() any { return *v }
		default:
			v := fs.String(f.name, "", "")
			values[f.name] = func() any { return *v }
		}
		if f.name == "verbose" || f.name == "store-firewalld" || f.name == "disable-comments" {
			fs.Lookup(f.name).NoOptDefVal = "true"
		}
	}
	if err := fs.Parse(words); err != nil {
		return "", fmt.Errorf("arguments of the init container: %w", err)
	}
	if fs.NArg() > 0 {
		return "", fmt.Errorf("arguments of the init container: %q is no flag", fs.Arg(0))
	}
	if *file != "" {
		return "", fmt.Errorf("its configuration is in file %s, not in the pod", *file)
	}
	if len(words) == 0 {
		return "", errors.New("it has no arguments, so its configuration is not in them")
	}
	doc := map[string]any{}
	if err := yaml.Unmarshal([]byte(*config), &doc); err != nil {
		return "", fmt.Errorf("--config: %w", err)
	}
	if doc == nil {
		doc = map[string]any{}
	}
	for _, f := range kumaFlags {
		if !fs.Changed(f.name) || f.kind == none {
			continue
		}
		v := values[f.name]()
		if f.kind == many {
			list := []string{}
			for e := range strings.SplitSeq(v.(string), ",") {
				if e = strings.TrimSpace(e); e != "" {
					list = append(list, e)
				}
			}
			v = list
		}
		if err := put(doc, f.path, v); err != nil {
			return "", err
		}
	}
	if fs.Changed("redirect-all-dns-traffic") || fs.Changed("redirect-dns") {
		if err := errors.Join(put(doc, "redirect.dns.enabled", *all || *dns), put(doc, "redirect.dns.captureAll", *all)); err != nil {
			return "", err
		}
	}
	if doc["dryRun"] == true {
		return "", errors.New("with dryRun it writes no rules")
	}
	text, err := yaml.Marshal(doc)
	return string(text), err
}

// put sets a value at a path of keys.
func put(doc map[string]any, path string, v any) error {
	at := doc
	names := strings.Split(path, ".")
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
