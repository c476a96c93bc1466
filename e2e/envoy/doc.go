// Package envoy tests the plugin with the real Envoy as the sidecar, under every backend and in both modes: the traffic
// that applications make passes through it, and its access log says where each connection was to go.
package envoy
