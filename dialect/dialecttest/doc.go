// Package dialecttest tests a dialect: what it makes of a pod's settings, and where real packets end under its rules.
//
//   - [Settings] tries each setting with good and bad values. It needs no kernel.
//   - [Fates] applies a pod's rules with each backend to the test world of package netnsexec/netnstest and compares
//     where connections end with what a [Case] says, for instance what was recorded under the mesh's own program.
//   - [Equivalent] needs no recordings: it runs the mesh's own rules in a second world.
//
// The latter two need root on Linux, iptables in both variants, and IPv6. A test
// skips with the name of what is missing, and fails where CI=true.
package dialecttest
