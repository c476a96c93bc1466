// Package deploy tests what the repository's directory deploy has to put meshcni on a cluster: the Helm chart, the plain
// manifests that are made from it, and the roles of each mode of repair.
//
// The tests render the chart with the helm program and hold each rendered object to three judges: the agent's own parsers, which must
// take every setting; deploy/rbac, which says what each mode may do; and a real API server, which must accept every object, unknown
// fields refused.
package deploy
