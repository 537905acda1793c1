package child

import "syscall"

// orphanEnds makes the kernel end the process when this one dies, however it dies.
func orphanEnds(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
