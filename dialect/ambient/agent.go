package ambient

// The names that Istio's own node agent gives its rules in a pod: by iptables two chains, of which we have the name of the
// second too, and by nftables three tables.
const (
	agentPrerouting = "ISTIO_PRERT"
	agentOutput     = "ISTIO_OUTPUT"
)

func agentTables() []string {
	return []string{"istio-ambient-raw", "istio-ambient-mangle", "istio-ambient-nat"}
}
