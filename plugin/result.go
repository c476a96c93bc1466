package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/pkg/types/create"
)

var mapType = reflect.TypeFor[map[string]json.RawMessage]()

// supported are the versions of the CNI specification, lowest first. Before 0.3.0 there were no chains; 0.3.0, whose
// results are those of 0.3.1, is still in lists that some networks ship.
var supported = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// PrevResult is the result of the plugins before this one.
type PrevResult struct {
	// Addrs are the pod's addresses, in the order of the result.
	Addrs []netip.Addr

	raw     json.RawMessage
	version string
}

// parsePrevResult reads a result of the configuration's version, as it must be, or of the one that it names.
func parsePrevResult(raw json.RawMessage, version string) (*PrevResult, error) {
	var r struct {
		CNIVersion string `json:"cniVersion"`
		IPs        []struct {
			Address   string `json:"address"`
			Interface *int   `json:"interface"`
		} `json:"ips"`
		Interfaces []struct {
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("%swants another type than %s", prefixed(wrong.Field), wrong.Value)
		}
		return nil, err
	}
	p := &PrevResult{raw: raw, version: r.CNIVersion}
	if p.version == "" {
		p.version = version
	}
	var errs []error
	var all []netip.Addr
	for i, ip := range r.IPs {
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			errs = append(errs, fmt.Errorf("ips[%d].address: %q is not an address with a prefix length", i, ip.Address))
			continue
		}
		addr := prefix.Addr().Unmap()
		all = append(all, addr)
		// An interface without a sandbox is the host's. An index that leads nowhere says nothing.
		n := ip.Interface
		if n == nil || *n < 0 || *n >= len(r.Interfaces) || r.Interfaces[*n].Sandbox != "" {
			p.Addrs = append(p.Addrs, addr)
		}
	}
	if len(p.Addrs) == 0 {
		p.Addrs = all // some plugins leave out every sandbox
	}
	return p, errors.Join(errs...)
}

func prefixed(field string) string {
	if field == "" {
		return ""
	}
	return field + " "
}

// in returns the result in the version: byte for byte as it came when it has that version.
func (p *PrevResult) in(version string) ([]byte, error) {
	if p == nil {
		return fmt.Appendf(nil, "{\n    \"cniVersion\": %q\n}\n", version), nil
	}
	if p.version == version {
		return append(withVersion(p.raw, version), '\n'), nil
	}
	if !slices.Contains(supported, p.version) {
		return nil, fmt.Errorf("convert prevResult: version %q is not known", p.version)
	}
	result, err := create.Create(p.version, p.raw)
	if err != nil {
		return nil, fmt.Errorf("convert prevResult: %w", err)
	}
	converted, err := result.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("convert prevResult: %w", err)
	}
	var out bytes.Buffer
	if err := converted.PrintTo(&out); err != nil {
		return nil, fmt.Errorf("convert prevResult: %w", err)
	}
	return append(out.Bytes(), '\n'), nil
}

// withVersion adds the version to a result that has none, as those before 1.0.0 may.
func withVersion(raw json.RawMessage, version string) []byte {
	var r struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(raw, &r) == nil && r.CNIVersion != "" {
		return slices.Clone(raw)
	}
	inner := bytes.TrimSpace(bytes.TrimSpace(raw)[1:])
	out := fmt.Appendf(nil, "{\"cniVersion\": %q", version)
	if inner[0] != '}' {
		out = append(out, ", "...)
	}
	return append(out, inner...)
}
