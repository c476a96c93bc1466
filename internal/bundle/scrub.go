//go:build linux

package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Scrubber takes secrets out of texts: those that it is told, and what looks like one.
type Scrubber struct{ secrets []string }

// redacted stands for what was taken out.
const redacted = "REDACTED"

// minSecret is the length from which on a secret is looked for. A shorter one would match everywhere.
const minSecret = 6

// Know adds secrets, such as the content of a token's file.
func (s *Scrubber) Know(secrets ...string) {
	for _, secret := range secrets {
		if secret = strings.TrimSpace(secret); len(secret) >= minSecret {
			s.secrets = append(s.secrets, secret)
		}
	}
}

// known takes out the secrets that the scrubber was told.
func (s *Scrubber) known(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

var (
	pem      = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`)
	userinfo = regexp.MustCompile(`(://)[^/\s@"']+@`)
	bearer   = regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]+`)
	// named is a value with a name that says what it is: token=…, "password": "…", client-key-data: ….
	named = regexp.MustCompile(`(?i)([\w.-]*(?:token|secret|passw|pwd|credential|api[_-]?key|access[_-]?key|private[_-]?key|key-data|cert[\w-]*-data)[\w.-]*\\?["']?\s*[:=]\s*)(\\*"(?:[^"\\]|\\[^"])*\\*"|'[^']*'|[^\s,;&"'}\]]+)`)
	// opaque is a run in which a token may be; see looksOpaque.
	opaque = regexp.MustCompile(`[A-Za-z0-9_+-]{16,}={0,2}`)
	jwt    = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*){1,2}`)
)

// Text takes secrets out of text that people wrote: what has a telling name or form, and long runs of letters and digits,
// as tokens are. Identifiers with uppercase letters and digits are lost, too.
func (s *Scrubber) Text(text string) string {
	text = s.known(text)
	lower := strings.ToLower(text) // to look for words is much faster than to match
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(lower, word) })
	}
	if has("-----begin") {
		text = pem.ReplaceAllString(text, redacted)
	}
	if has("eyj") {
		text = jwt.ReplaceAllString(text, redacted)
	}
	if has("://") {
		text = userinfo.ReplaceAllString(text, "${1}"+redacted+"@")
	}
	if has("bearer", "basic") {
		text = bearer.ReplaceAllString(text, "${1}${2}"+redacted)
	}
	if has("token", "secret", "passw", "pwd", "credential", "key", "cert") {
		text = named.ReplaceAllStringFunc(text, func(found string) string {
			if strings.HasPrefix(found, "token-expired:") { // a code of ours, before its explanation
				return found
			}
			return named.ReplaceAllString(found, "${1}"+redacted)
		})
	}
	return opaque.ReplaceAllStringFunc(text, func(run string) string {
		if looksOpaque(run) {
			return redacted
		}
		return run
	})
}

// looksOpaque reports whether a run is a token rather than a name. Names of Kubernetes' objects are lower-case, and those
// with digits have dashes (UIDs, ReplicaSets' pods); constants have no
// digits, or underscores.
func looksOpaque(run string) bool {
	digit := strings.ContainsFunc(run, unicode.IsDigit)
	upper, lower := strings.ContainsFunc(run, unicode.IsUpper), strings.ContainsFunc(run, unicode.IsLower)
	switch {
	case !upper && !lower, !lower && strings.Contains(run, "_"):
		return false
	case digit:
		return upper || !strings.Contains(run, "-") && len(run) >= 20
	}
	return upper && lower && len(run) >= 32
}

// identifiers are keys of our own logs and records whose values are names by which things are found.
var identifiers = map[string]bool{
	"container_id": true, "containerID": true, "ContainerID": true, "netns": true, "uid": true, "pod": true, "namespace": true, "name": true,
	"reason": true, "time": true, "level": true, "msg": true, "by": true, "program": true, "network": true, "ifName": true, "path": true,
}

// JSON takes secrets out of a document that our own programs wrote, and indents it.
func (s *Scrubber) JSON(text []byte) ([]byte, error) {
	v, err := decode(text)
	if err != nil {
		return nil, err
	}
	return encode(s.value("", v), "  "), nil
}

// Lines is JSON of each line of a log. Lines that are no JSON are taken for text.
func (s *Scrubber) Lines(text []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		v, err := decode(line)
		if err != nil {
			b.WriteString(s.Text(strings.TrimSuffix(string(line), "\n")) + "\n")
			continue
		}
		b.Write(encode(s.value("", v), ""))
	}
	return b.Bytes()
}

func (s *Scrubber) value(key string, v any) any {
	switch v := v.(type) {
	case string:
		if identifiers[key] && len(v) <= maxName {
			return s.known(v)
		}
		return s.Text(v)
	case map[string]any:
		for k := range v {
			v[k] = s.value(k, v[k])
			if secretKey.MatchString(k) {
				v[k] = hidden(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = s.value(key, v[i])
		}
	}
	return v
}

var secretKey = regexp.MustCompile(`(?i)token|secret|passw|pwd|credential|api_?key|private`)

// maxName is the length of the longest name of a Kubernetes object (253), which a path may have before it.
const maxName = 400

// harmless are the keys of network configurations whose values are kept, because their meaning is known: the
// specification's, and those of the plugins that everybody has. The values of other keys may be anything.
var harmless = []string{
	"type", "name", "cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "capabilities",
	"bridge", "master", "mode", "mtu", "vlan", "isGateway", "isDefaultGateway", "forceAddress", "ipMasq", "hairpinMode", "promiscMode", "snat",
	"subnet", "subnets", "ranges", "rangeStart", "rangeEnd", "gateway", "routes", "dst", "gw", "dataDir", "usePodCIDR", "masqAll",
	"log_level", "log_file_path", "datastore_type", "policy", "nodename", "chaining-mode", "enable-debug", "log-file",
}

// holders are keys whose values are objects or lists that are looked through.
var holders = []string{"plugins", "delegate", "delegates", "ipam", "capabilities", "ranges", "routes", "kubernetes", "ambient", "policy", "runtimeConfig", "args", "dns"}

// own are the keys of our plugin's entry, at the top and below "kubernetes" and "ambient".
var own = []string{
	"dialect", "agent", "backend", "run_dir", "pod_namespace", "add_deadline", "uncaptured_family", "refuse_proxy_uid", "refuse_net_raw", "allow_sandboxed", "sandboxed_classes", "write_status",
	"dns_capture", "ipv6", "enablement_selectors", "probe_ipv4", "probe_ipv6", "system_namespace", "podSelector", "namespaceSelector",
	"matchLabels", "matchExpressions", "key", "operator", "values",
	"ready_without_agent", "exclude_namespaces", "exclude_namespace_selector", "kubeconfig", "cni_bin_dir", "log_level",
}

// NetworkConfig keeps of a network configuration what is known to be harmless, and what our own entries (of the types) say.
// Of everything else it keeps the keys, and the kind of the values. Text that is no JSON object is an error.
func (s *Scrubber) NetworkConfig(text []byte, types []string) ([]byte, error) {
	v, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("no JSON, so it is left out: %d bytes", len(text))
	}
	top, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("no JSON object, so it is left out: %d bytes", len(text))
	}
	return encode(s.network(top, types, false), "  "), nil
}

func (s *Scrubber) network(object map[string]any, types []string, ours bool) map[string]any {
	if typ, ok := object["type"].(string); ok {
		ours = slices.Contains(types, typ)
	}
	out := map[string]any{}
	for key, v := range object {
		known := slices.Contains(harmless, key) || ours && slices.Contains(own, key)
		out[key] = s.member(key, v, types, ours, known)
	}
	return out
}

func (s *Scrubber) member(key string, v any, types []string, ours, known bool) any {
	switch v := v.(type) {
	case nil, bool:
		return v
	case map[string]any:
		if known || slices.Contains(holders, key) {
			return s.network(v, types, ours)
		}
	case []any:
		if known || slices.Contains(holders, key) {
			out := make([]any, len(v))
			for i := range v {
				out[i] = s.member(key, v[i], types, ours, known)
			}
			return out
		}
	case json.Number:
		if known {
			return v
		}
	case string:
		if known && len(v) <= maxName && !strings.Contains(v, "\n") {
			return s.Text(v)
		}
	}
	return hidden(v)
}

// hidden says of what kind a value was.
func hidden(v any) any {
	switch v.(type) {
	case nil, bool:
		return v
	case string:
		return redacted
	case json.Number:
		return redacted + " (number)"
	case []any:
		return redacted + " (list)"
	}
	return redacted + " (object)"
}

func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err = d.Decode(&v); err == nil && d.More() {
		err = fmt.Errorf("more than one document")
	}
	return v, err
}

// encode encodes what was decoded.
func encode(v any, indent string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	_ = e.Encode(v)
	return b.Bytes()
}
