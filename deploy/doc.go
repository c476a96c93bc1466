// Package deploy holds what puts meshcni on a cluster: the Helm chart (helm), the
// plain manifests that are made from it (manifests), the roles of each mode of
// repair (rbac) and what watches it all (monitoring). README.md says what is where.
//
// It has tests only. They render the chart with the helm program and hold each rendered object to three judges: the
// agent's own parsers, which must take every setting; deploy/rbac, which says what each mode may do; and a real API
// server, which must accept every object, unknown fields refused.
package deploy
