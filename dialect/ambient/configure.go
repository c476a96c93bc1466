package ambient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/jsonkeys"
	"github.com/meshcni/meshcni/selection"
)

// configured returns the dialect with the settings of a node's configuration in place of those of the Options.
func (o Options) configured(d dialect.Dialect, settings json.RawMessage) (dialect.Dialect, []string, error) {
	keys := struct {
		DNSCapture          bool      `json:"dns_capture"`
		IPv6                bool      `json:"ipv6"`
		EnablementSelectors selectors `json:"enablement_selectors"`
		SystemNamespace     string    `json:"system_namespace"`
		ProbeIPv4           addr      `json:"probe_ipv4"`
		ProbeIPv6           addr      `json:"probe_ipv6"`
	}{!o.NoDNSCapture, !o.NoIPv6, o.Selectors, o.SystemNamespace, addr{o.ProbeIPv4}, addr{o.ProbeIPv6}}
	p := &jsonkeys.Parser{}
	p.Value(Name, settings, reflect.ValueOf(&keys).Elem())
	slices.Sort(p.Unknown)
	o = Options{
		ExcludedNamespaces: d.Policy.ExcludedNamespaces, Selectors: keys.EnablementSelectors,
		NoDNSCapture: !keys.DNSCapture, NoIPv6: !keys.IPv6, SystemNamespace: keys.SystemNamespace, ProbeIPv4: keys.ProbeIPv4.Addr, ProbeIPv6: keys.ProbeIPv6.Addr,
	}
	var errs []error
	for _, f := range p.Faults { // the flag of a list has all its items
		key, item, is := strings.Cut(f.Path, "[")
		if is {
			f.Err = fmt.Errorf("[%s: %w", item, f.Err)
		}
		errs = append(errs, &dialect.KeyError{Key: key, Err: f.Err})
	}
	if err := errors.Join(append(errs, o.Validate())...); err != nil {
		return d, p.Unknown, err
	}
	return New(o), p.Unknown, nil
}

// addr is an IP address without zone.
type addr struct{ netip.Addr }

func (a *addr) UnmarshalText(text []byte) error {
	parsed, err := netip.ParseAddr(string(text))
	if err == nil && parsed.Zone() != "" {
		err = errors.New("it has a zone")
	}
	if err != nil {
		return fmt.Errorf("%q is not an IP address: %w", text, err)
	}
	a.Addr = parsed
	return nil
}

// selectors are read strictly: a selector that lost a half to a typing error would pick other pods.
type selectors []selection.Selector

// ParseKey implements [jsonkeys.Own].
func (s *selectors) ParseKey(p *jsonkeys.Parser, path string, raw json.RawMessage) {
	var items []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil || slices.ContainsFunc(items, func(o map[string]json.RawMessage) bool { return o == nil }) {
		p.Wrong(path, "want a list of objects with podSelector and namespaceSelector, not %s", jsonkeys.Abbreviate(raw))
		return
	}
	*s = make(selectors, len(items))
	for i, item := range items {
		at := fmt.Sprintf("%s[%d].", path, i)
		(*s)[i].Pod = labelSelector(p, at+"podSelector", jsonkeys.Take(item, "podSelector"))
		(*s)[i].Namespace = labelSelector(p, at+"namespaceSelector", jsonkeys.Take(item, "namespaceSelector"))
		p.Strangers(at, item)
	}
}

func labelSelector(p *jsonkeys.Parser, path string, raw json.RawMessage) (s metav1.LabelSelector) {
	if raw == nil {
		return s
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		p.Wrong(path, "want an object with matchLabels and matchExpressions, not %s", jsonkeys.Abbreviate(raw))
		return s
	}
	if labels := jsonkeys.Take(keys, "matchLabels"); labels != nil && json.Unmarshal(labels, &s.MatchLabels) != nil {
		p.Wrong(path+".matchLabels", "want an object of strings, not %s", jsonkeys.Abbreviate(labels))
	}
	if expressions := jsonkeys.Take(keys, "matchExpressions"); expressions != nil {
		d := json.NewDecoder(bytes.NewReader(expressions))
		d.DisallowUnknownFields()
		if err := d.Decode(&s.MatchExpressions); err != nil {
			p.Wrong(path+".matchExpressions", "want a list of objects with key, operator and values, not %s: %v", jsonkeys.Abbreviate(expressions), err)
		}
	}
	p.Strangers(path+".", keys)
	return s
}
