//go:build linux

package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// Scrubber takes secrets out of texts: those that it is told, and what looks like one.
type Scrubber struct{ secrets []string }

// redacted stands for what was taken out.
const redacted = "REDACTED"

// minSecret is the length from which on a secret is looked for. A shorter one would match everywhere.
const minSecret = 6

// Know adds secrets, such as the content of a token's file, as they are and as JSON has them.
func (s *Scrubber) Know(secrets ...string) {
	for _, secret := range secrets {
		if secret = strings.TrimSpace(secret); len(secret) < minSecret {
			continue
		}
		quoted, _ := json.Marshal(secret) // a string always can be
		s.secrets = append(s.secrets, secret, strings.Trim(string(quoted), `"`), strings.Trim(string(encode(secret)), "\"\n"))
	}
}

// known takes out the secrets that the scrubber was told.
func (s *Scrubber) known(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// forms are compiled when a bundle is made, not whenever a program that can make one starts.
var forms = sync.OnceValue(func() (f struct{ pem, userinfo, bearer, named, opaque, jwt *regexp.Regexp }) {
	f.pem = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`)
	f.userinfo = regexp.MustCompile(`(://)[^/\s@"']+@`)
	f.bearer = regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]+`)
	// A value with a name that says what it is: token=…, "password": "…", client-key-data: ….
	f.named = regexp.MustCompile(`(?i)([\w.-]*(?:token|secret|passw|pwd|credential|api[_-]?key|access[_-]?key|private[_-]?key|key-data|cert[\w-]*-data)[\w.-]*\\?["']?\s*[:=]\s*)(\\*"(?:[^"\\]|\\[^"])*\\*"|'[^']*'|\{[^}]*\}?|\[[^\]]*\]?|[^\s,;&"'}\]]+)`)
	// A run in which a token may be; see looksOpaque.
	f.opaque = regexp.MustCompile(`[A-Za-z0-9_+-]{16,}={0,2}`)
	f.jwt = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*){1,2}`)
	return f
})

// Text takes secrets out of a text: what has a telling name or form, and long runs of letters and digits, as tokens are. Identifiers with
// uppercase letters and digits are lost, too; of digests and containers' IDs the first digits stay, by which people name them.
func (s *Scrubber) Text(text string) string {
	text = s.known(text)
	f := forms()
	lower := strings.ToLower(text) // to look for words is much faster than to match
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(lower, word) })
	}
	if has("-----begin") {
		text = f.pem.ReplaceAllString(text, redacted)
	}
	if has("eyj") {
		text = f.jwt.ReplaceAllString(text, redacted)
	}
	if has("://") {
		text = f.userinfo.ReplaceAllString(text, "${1}"+redacted+"@")
	}
	if has("bearer", "basic") {
		text = f.bearer.ReplaceAllString(text, "${1}${2}"+redacted)
	}
	if has("token", "secret", "passw", "pwd", "credential", "key", "cert") {
		text = f.named.ReplaceAllStringFunc(text, func(found string) string {
			if strings.HasPrefix(found, "token-expired:") { // a code of ours, before its explanation
				return found
			}
			return f.named.ReplaceAllString(found, "${1}"+redacted)
		})
	}
	return f.opaque.ReplaceAllStringFunc(text, func(run string) string {
		switch {
		case len(run) == 64 && strings.Trim(run, "0123456789abcdef") == "":
			return run[:12] + redacted
		case looksOpaque(run):
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

// maxName is the length of the longest name of a Kubernetes object (253), which a path may have before it.
const maxName = 400

// harmless are the keys of network configurations whose values are kept, because their meaning is known: the specification's, those of the
// plugins that everybody has, and our own. The values of other keys may be anything.
var harmless = []string{
	"type", "name", "cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "capabilities",
	"bridge", "master", "mode", "mtu", "vlan", "isGateway", "isDefaultGateway", "forceAddress", "ipMasq", "hairpinMode", "promiscMode", "snat",
	"subnet", "subnets", "ranges", "rangeStart", "rangeEnd", "gateway", "routes", "dst", "gw", "dataDir", "usePodCIDR", "masqAll",
	"log_level", "log_file_path", "datastore_type", "policy", "nodename", "chaining-mode", "enable-debug", "log-file",
	"dialect", "agent", "backend", "run_dir", "pod_namespace", "add_deadline", "uncaptured_family", "refuse_proxy_uid", "refuse_net_raw", "allow_sandboxed", "sandboxed_classes", "write_status",
	"dns_capture", "ipv6", "enablement_selectors", "probe_ipv4", "probe_ipv6", "system_namespace", "podSelector", "namespaceSelector", "matchLabels",
	"ready_without_agent", "exclude_namespaces", "exclude_namespace_selector", "kubeconfig", "cni_bin_dir",
	"plugins", "delegate", "delegates", "ipam", "kubernetes", "ambient", "runtimeConfig", "args", "dns", // objects that are looked through
}

// NetworkConfig keeps of a network configuration what is known to be harmless; of everything else it keeps the keys, and the kind of the
// values. Text that is no JSON object is an error.
func NetworkConfig(text []byte) ([]byte, error) {
	var top map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&top); err != nil || top == nil || d.More() {
		return nil, fmt.Errorf("no JSON, or no single object, so it is left out: %d bytes", len(text))
	}
	return encode(kept("plugins", top)), nil
}

// kept returns a value without what is not known to be harmless.
func kept(key string, v any) any {
	known := slices.Contains(harmless, key)
	switch v := v.(type) {
	case map[string]any:
		if known {
			for k := range v {
				v[k] = kept(k, v[k])
			}
			return v
		}
	case []any:
		if known {
			for i := range v {
				v[i] = kept(key, v[i])
			}
			return v
		}
	case json.Number:
		if known && key != "args" {
			return v
		}
	case string:
		if known && key != "args" && len(v) <= maxName && !strings.Contains(v, "\n") {
			return v
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

// encode encodes a value for people.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // what was decoded, or a type of ours
	return b.Bytes()
}
