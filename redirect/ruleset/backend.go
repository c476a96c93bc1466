package ruleset

import "fmt"

// Backend names a program or kernel interface by which rules are written, in configuration, flags and reports.
type Backend string

// The backends.
const (
	// BackendAuto is BackendIptables if its programs are on the host, else BackendNftables.
	BackendAuto Backend = "auto"
	// BackendIptables is the variant in use in the namespace, else BackendIptablesNFT, else BackendIptablesLegacy.
	BackendIptables       Backend = "iptables"
	BackendIptablesNFT    Backend = "iptables-nft"
	BackendIptablesLegacy Backend = "iptables-legacy"
	BackendNftables       Backend = "nftables"
)

// ParseBackend parses the name of a backend. The empty string is [BackendAuto].
func ParseBackend(s string) (Backend, error) {
	switch b := Backend(s); b {
	case "":
		return BackendAuto, nil
	case BackendAuto, BackendIptables, BackendIptablesNFT, BackendIptablesLegacy, BackendNftables:
		return b, nil
	}
	return "", fmt.Errorf("backend %q: not one of auto, iptables, iptables-nft, iptables-legacy, nftables", s)
}
