package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types/create"
)

// supported are the versions of the CNI specification, oldest first. Before 0.3.0 there were no chains; some networks still
// ship lists of 0.3.0, whose results are those of 0.3.1.
var supported = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func newest() string { return supported[len(supported)-1] }

// prevResult is the result of the plugins before this one.
type prevResult struct {
	addrs   []netip.Addr // the pod's, in the order of the result
	raw     json.RawMessage
	version string
}

// parsePrevResult reads a result. It should have the configuration's version; if it names another, that one counts.
func parsePrevResult(raw json.RawMessage, version string) (*prevResult, error) {
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
	p := &prevResult{raw: raw, version: r.CNIVersion}
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
			p.addrs = append(p.addrs, addr)
		}
	}
	if len(p.addrs) == 0 {
		p.addrs = all // some plugins leave out every sandbox
	}
	return p, errors.Join(errs...)
}

func prefixed(field string) string {
	if field == "" {
		return ""
	}
	return field + " "
}

// in returns the result in the version. A result that has that version is returned byte for byte.
func (p *prevResult) in(version string) ([]byte, error) {
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

// withVersion adds the version to a result that has none, as results before 1.0.0 may.
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
