// Package dialecttest shows with real packets what a dialect makes of a pod.
//
// The central function is [Fates]: it builds the pod's rules, applies them with
// each backend to the test world of package netnsexec/netnstest, and compares
// where connections end up with what was recorded under the mesh's own program.
// [Equivalent] does without recordings: it runs the mesh's own rules, as
// iptables-restore takes them, in a second world.
//
// The functions need root on Linux, iptables in both variants and IPv6. What is
// missing skips the test with its name, and fails it where CI=true.
package dialecttest
