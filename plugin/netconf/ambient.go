package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Ambient is the configuration's object of that name: the settings of the dialect ambient for all pods. A key that is absent
// has its default, Istio's own.
type Ambient struct {
	// DNSCapture captures DNS queries, where a pod's annotation does not say otherwise. Default: on.
	DNSCapture Switch `json:"dns_capture,omitempty"`
	// IPv6 captures IPv6. If it is off, IPv6 bypasses the mesh, see UncapturedFamily. Default: on.
	IPv6 Switch `json:"ipv6,omitempty"`
	// EnablementSelectors pick the pods. Default: those with the label istio.io/dataplane-mode=ambient, and in namespaces
	// with it all but those with "none".
	EnablementSelectors Selectors `json:"enablement_selectors,omitzero"`
	// ProbeIPv4 and ProbeIPv6 are the source addresses of the host's own connections to pods in the mesh. Default:
	// 169.254.7.127 and fd16:9254:7127:1337:ffff:ffff:ffff:ffff.
	ProbeIPv4 Addr `json:"probe_ipv4,omitempty"`
	ProbeIPv6 Addr `json:"probe_ipv6,omitempty"`
}

// IsZero reports whether all settings have their defaults.
func (a Ambient) IsZero() bool {
	return a.EnablementSelectors == nil && a.DNSCapture == "" && a.IPv6 == "" && a.ProbeIPv4 == "" && a.ProbeIPv6 == ""
}

// Switch is a truth value that may be left out: "true", "false", or "" for the default.
type Switch string

// The switches.
const (
	On  Switch = "true"
	Off Switch = "false"
)

// UnmarshalText accepts what strconv.ParseBool does.
func (s *Switch) UnmarshalText(text []byte) error {
	on, err := strconv.ParseBool(string(text))
	if err != nil {
		return fmt.Errorf("%q is not true or false", text)
	}
	*s = Switch(strconv.FormatBool(on))
	return nil
}

// MarshalJSON writes a JSON truth value; null for all but [On] and [Off].
func (s Switch) MarshalJSON() ([]byte, error) {
	if s == On || s == Off {
		return []byte(s), nil
	}
	return []byte("null"), nil
}

func (s *Switch) parse(p *parser, path string, raw json.RawMessage) {
	var on bool
	if err := json.Unmarshal(raw, &on); err != nil {
		p.wrong(path, "want true or false, not %s", abbreviate(raw))
		return
	}
	*s = Switch(strconv.FormatBool(on))
}

// Addr is an IP address as text, or "".
type Addr string

// UnmarshalText accepts an IP address without zone.
func (a *Addr) UnmarshalText(text []byte) error {
	addr, err := netip.ParseAddr(string(text))
	if err == nil && addr.Zone() != "" {
		err = errors.New("it has a zone")
	}
	if err != nil {
		return fmt.Errorf("%q is not an IP address: %w", text, err)
	}
	*a = Addr(addr.String())
	return nil
}

// Netip returns the address; the zero one for "" and for what UnmarshalText does not accept.
func (a Addr) Netip() netip.Addr {
	addr, _ := netip.ParseAddr(string(a))
	return addr
}

// Selectors pick pods: one that matches is enough. Nil is the default of a mesh, an empty list picks no pod.
type Selectors []Selector

// Selector matches a pod by its own labels and by those of its namespace. An empty half matches everything. Whether the keys,
// values and operators are those of Kubernetes is not looked at here.
type Selector struct {
	PodSelector       LabelSelector `json:"podSelector,omitzero"`
	NamespaceSelector LabelSelector `json:"namespaceSelector,omitzero"`
}

// LabelSelector is that of Kubernetes.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []LabelExpression `json:"matchExpressions,omitempty"`
}

// IsZero reports whether the selector matches everything.
func (s LabelSelector) IsZero() bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// LabelExpression is one of MatchExpressions. Operator is In, NotIn, Exists or DoesNotExist.
type LabelExpression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// String returns the selectors as JSON; "" for nil.
func (s Selectors) String() string {
	if s == nil {
		return ""
	}
	return string(bytes.TrimSpace(encode([]Selector(s), "")))
}

// UnmarshalText accepts what String returns. The error names every mistake, unknown keys included: a selector that lost a
// half to a typing error would pick other pods.
func (s *Selectors) UnmarshalText(text []byte) error {
	var raw json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return fmt.Errorf("a list of selectors: %w", err)
	}
	p := &parser{}
	var parsed Selectors
	parsed.parse(p, "selectors", raw)
	if err := errors.Join(p.errs...); err != nil {
		return err
	}
	*s = parsed
	return nil
}

func (s *Selectors) parse(p *parser, path string, raw json.RawMessage) {
	var items []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil || slices.ContainsFunc(items, func(o map[string]json.RawMessage) bool { return o == nil }) {
		p.wrong(path, "want a list of objects with podSelector and namespaceSelector, not %s", abbreviate(raw))
		return
	}
	parsed := make(Selectors, len(items))
	for i, item := range items {
		at := fmt.Sprintf("%s[%d].", path, i)
		parsed[i].PodSelector.parse(p, at+"podSelector", take(item, "podSelector"))
		parsed[i].NamespaceSelector.parse(p, at+"namespaceSelector", take(item, "namespaceSelector"))
		p.strangers(at, item)
	}
	*s = parsed
}

func (s *LabelSelector) parse(p *parser, path string, raw json.RawMessage) {
	if raw == nil {
		return
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		p.wrong(path, "want an object with matchLabels and matchExpressions, not %s", abbreviate(raw))
		return
	}
	if labels := take(keys, "matchLabels"); labels != nil && json.Unmarshal(labels, &s.MatchLabels) != nil {
		p.wrong(path+".matchLabels", "want an object of strings, not %s", abbreviate(labels))
	}
	if expressions := take(keys, "matchExpressions"); expressions != nil {
		d := json.NewDecoder(bytes.NewReader(expressions))
		d.DisallowUnknownFields()
		if err := d.Decode(&s.MatchExpressions); err != nil {
			p.wrong(path+".matchExpressions", "want a list of objects with key, operator and values, not %s: %v", abbreviate(expressions), err)
		}
	}
	p.strangers(path+".", keys)
	s.normalize()
}

// normalize makes what is empty nil, as it is without its key.
func (s *LabelSelector) normalize() {
	if len(s.MatchLabels) == 0 {
		s.MatchLabels = nil
	}
	if len(s.MatchExpressions) == 0 {
		s.MatchExpressions = nil
	}
	for i := range s.MatchExpressions {
		if e := &s.MatchExpressions[i]; len(e.Values) == 0 {
			e.Values = nil
		}
	}
}

// strangers makes the keys that nobody took mistakes.
func (p *parser) strangers(path string, keys map[string]json.RawMessage) {
	var unknown []string
	for key := range keys {
		unknown = append(unknown, key)
	}
	slices.Sort(unknown)
	for _, key := range unknown {
		p.wrong(path+key, "unknown key")
	}
}
