// Package redirect says, as a typed value, which of a pod's connections go
// through its mesh proxy, and turns that value into firewall rules.
//
// The central type is [Redirect]. Start from [Default] or from a mesh's dialect, change fields, and call
// [Redirect.Ruleset]; a Redirect that validates always renders. [Schema] reads a Redirect from a pod's annotations, its
// proxy container's environment and securityContext, with every bad value reported at once.
//
// Nothing here does I/O, reads the process's environment or starts a program, so rules can be tested and reviewed on
// any machine. Putting them into a kernel is the work of package redirect/apply.
package redirect
